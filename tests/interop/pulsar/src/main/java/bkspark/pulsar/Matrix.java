package bkspark.pulsar;

import com.google.protobuf.Any;
import com.google.protobuf.Api;
import com.google.protobuf.ByteString;
import com.google.protobuf.Method;
import com.google.protobuf.Option;
import com.google.protobuf.SourceContext;
import com.google.protobuf.Syntax;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.EncoderFactory;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Topics for each codec and each way of sending (single, batched, chunks), of what those of {@link Topics} lack.
 *
 * <p>{@code schemas URL NAMESPACE}, {@code transactions URL NAMESPACE} and {@code encrypted URL NAMESPACE FOLDER}, where
 * the folder has public keys in PEM, produce and say "filled TOPIC" for each; {@code evolved URL TOPIC} writes Avro of
 * two versions; {@code delayed URL TOPIC} messages that shall be delivered in an hour; {@code acknowledge URL TOPIC
 * SUBSCRIPTION COUNT} takes as many messages, and acknowledges the first three and every fourth one.
 */
public final class Matrix {
    private static final int WAIT_S = 120;
    private static final int CHUNK_BYTES = 1000;
    private static final int LARGE = 3500;
    private static final int TRANSACTION_MESSAGES = 12;
    private static final List<String> WAYS = List.of("single", "batched", "chunks");

    private Matrix() {
    }

    /** A record of numbers for which JSON has no form. */
    public static final class Rates {
        public double rate;
        public float part;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1])
                .enableTransaction(arguments[0].equals("transactions"))
                .operationTimeout(WAIT_S, TimeUnit.SECONDS).build()) {
            switch (arguments[0]) {
                case "schemas" -> schemas(client, arguments[2]);
                case "transactions" -> transactions(client, arguments[2]);
                case "encrypted" -> encrypted(client, arguments[2], Path.of(arguments[3]));
                case "evolved" -> evolved(client, arguments[2]);
                case "delayed" -> delayed(client, arguments[2]);
                case "acknowledge" -> acknowledge(client, arguments[2], arguments[3], Integer.parseInt(arguments[4]));
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        }
    }

    private static <T> ProducerBuilder<T> sending(ProducerBuilder<T> builder, CompressionType codec, String way) {
        builder.compressionType(codec).sendTimeout(WAIT_S, TimeUnit.SECONDS).enableBatching(way.equals("batched"))
                .batchingMaxPublishDelay(1, TimeUnit.HOURS).batchingMaxMessages(2);
        return way.equals("chunks") ? builder.enableChunking(true).chunkMaxMessageSize(CHUNK_BYTES) : builder;
    }

    /** Text of letters that no codec makes small enough for one chunk. */
    private static String large(int seed) {
        Random random = new Random(seed);
        StringBuilder text = new StringBuilder();
        for (int number = 0; number < LARGE; number++) {
            text.append((char) ('!' + random.nextInt(90)));
        }
        return text.toString();
    }

    // ---- schemas ----

    private static void schemas(PulsarClient client, String namespace) throws Exception {
        Topics.Click click = new Topics.Click();
        click.number = 5;
        click.page = large(1);
        click.spots = List.of(1L, 1L << 40);
        click.tags = Map.of("a", "b");
        Rates rates = new Rates();
        rates.rate = Double.NaN;
        rates.part = Float.NEGATIVE_INFINITY;
        Api api = Api.newBuilder().setName(large(2)).setVersion("v1").setSyntax(Syntax.SYNTAX_PROTO3)
                .setSourceContext(SourceContext.newBuilder().setFileName("a.proto"))
                .addMethods(Method.newBuilder().setName("get").setResponseStreaming(true).addOptions(
                        Option.newBuilder().setName("o").setValue(Any.newBuilder().setTypeUrl("t").setValue(
                                ByteString.copyFrom(new byte[] {1, (byte) 0xff}))))).build();
        List<KeyValue<String, Integer>> pairs = Arrays.asList(new KeyValue<>("k", 258), new KeyValue<>(null, 5),
                new KeyValue<>("gone", null), new KeyValue<>(large(3), 7));
        for (CompressionType codec : CompressionType.values()) {
            for (String way : WAYS) {
                String prefix = namespace + "/of-" + codec + "-" + way + "-";
                values(client, prefix + "string", Schema.STRING, codec, way, Arrays.asList("", "hällo", null, large(4)));
                values(client, prefix + "json", Schema.JSON(Topics.Click.class), codec, way,
                        Arrays.asList(click, null, new Topics.Click()));
                values(client, prefix + "rates", Schema.JSON(Rates.class), codec, way, List.of(rates, new Rates()));
                values(client, prefix + "avro", Schema.AVRO(Topics.Click.class), codec, way,
                        Arrays.asList(click, null, new Topics.Click()));
                values(client, prefix + "protobuf", Schema.PROTOBUF_NATIVE(Api.class), codec, way,
                        Arrays.asList(api, null, Api.getDefaultInstance()));
                values(client, prefix + "inline",
                        Schema.KeyValue(Schema.STRING, Schema.INT32, KeyValueEncodingType.INLINE), codec, way, pairs);
                values(client, prefix + "separated",
                        Schema.KeyValue(Schema.STRING, Schema.INT32, KeyValueEncodingType.SEPARATED), codec, way, pairs);
            }
        }
    }

    private static <T> void values(PulsarClient client, String topic, Schema<T> schema, CompressionType codec, String way,
            List<T> values) throws Exception {
        try (Producer<T> producer = sending(client.newProducer(schema).topic(topic), codec, way).create()) {
            List<CompletableFuture<?>> sent = new ArrayList<>();
            for (int number = 0; number < values.size(); number++) {
                TypedMessageBuilder<T> message = producer.newMessage().value(values.get(number));
                if (number % 2 == 1) {
                    message.property("number", Integer.toString(number)).eventTime(1_600_000_000_000L + number);
                }
                sent.add(message.sendAsync());
            }
            waitFor(producer, sent);
        }
        said(topic);
    }

    private static void evolved(PulsarClient client, String topic) throws Exception {
        String common = """
                {"name": "i", "type": "int"},
                {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
                {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
                {"name": "either", "type": ["int", "string"]},
                {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                {"name": "suit", "type": {"type": "enum", "name": "Suit", "symbols": ["A", "B"]}},
                {"name": "inner", "type": {"type": "record", "name": "Inner", "fields": [
                    {"name": "x", "type": "double"}%s]}}%s""";
        String record = "{\"type\": \"record\", \"name\": \"R\", \"namespace\": \"n\", \"fields\": [%s]}";
        avro(client, topic, String.format(record, String.format(common, "", "")), 1);
        avro(client, topic, String.format(record, String.format(common,
                ", {\"name\": \"y\", \"type\": \"double\", \"default\": 1.5}",
                ", {\"name\": \"note\", \"type\": \"string\", \"default\": \"none\"},"
                + "{\"name\": \"ids\", \"type\": [\"null\", {\"type\": \"array\", \"items\": \"long\"}],"
                + " \"default\": null}")), 2);
        said(topic);
    }

    /** Sends one record with all the fields that the schema has, as bytes of Avro's own encoder. */
    private static void avro(PulsarClient client, String topic, String definition, int version) throws Exception {
        org.apache.avro.Schema schema = new org.apache.avro.Schema.Parser().parse(definition);
        GenericRecord inner = new GenericData.Record(schema.getField("inner").schema());
        inner.put("x", 0.5 * version);
        GenericRecord record = new GenericData.Record(schema);
        record.put("i", version);
        record.put("at", 1_700_000_000_123L);
        record.put("price", ByteBuffer.wrap(new byte[] {(byte) 0xff, (byte) (0x80 + version)}));
        record.put("either", version == 1 ? 7 : "seven");
        record.put("day", 365);
        record.put("suit", new GenericData.EnumSymbol(schema.getField("suit").schema(), version == 1 ? "A" : "B"));
        record.put("inner", inner);
        if (version == 2) {
            inner.put("y", 2.5);
            record.put("note", "here");
            record.put("ids", List.of(1L, 1L << 40));
        }
        ByteArrayOutputStream octets = new ByteArrayOutputStream();
        BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(octets, null);
        new GenericDatumWriter<GenericRecord>(schema).write(record, encoder);
        encoder.flush();
        try (Producer<byte[]> producer = client.newProducer(Schema.NATIVE_AVRO(schema)).topic(topic).create()) {
            producer.send(octets.toByteArray());
        }
    }

    // ---- transactions, encryption, subscriptions ----

    private static void transactions(PulsarClient client, String namespace) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            for (String way : WAYS) {
                String topic = namespace + "/in-transactions-" + codec + "-" + way;
                try (Producer<byte[]> producer = sending(client.newProducer().topic(topic), codec, way)
                        .sendTimeout(0, TimeUnit.SECONDS).create()) {
                    Transaction kept = transaction(client);
                    Transaction gone = transaction(client);
                    List<CompletableFuture<?>> sent = new ArrayList<>();
                    for (int number = 0; number < TRANSACTION_MESSAGES; number++) {
                        TypedMessageBuilder<byte[]> message = switch (number / 2 % 3) {
                            case 0 -> producer.newMessage();
                            case 1 -> producer.newMessage(kept);
                            default -> producer.newMessage(gone);
                        };
                        String value = number % 4 == 0 ? large(number) : "small " + number;
                        sent.add(message.key("k" + number).value(value.getBytes(StandardCharsets.UTF_8)).sendAsync());
                        if (number % 2 == 1) {
                            // Messages of transactions that are under way at once may overtake each other.
                            waitFor(producer, sent);
                        }
                    }
                    gone.abort().get(WAIT_S, TimeUnit.SECONDS);
                    kept.commit().get(WAIT_S, TimeUnit.SECONDS);
                    waitFor(producer, List.of(producer.newMessage().value(new byte[] {1}).sendAsync()));
                }
                said(topic);
            }
        }
    }

    private static Transaction transaction(PulsarClient client) throws Exception {
        return client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build().get(WAIT_S,
                TimeUnit.SECONDS);
    }

    private static void encrypted(PulsarClient client, String namespace, Path folder) throws Exception {
        CryptoKeyReader keys = new CryptoKeyReader() {
            private static final long serialVersionUID = 1L;

            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                try {
                    return new EncryptionKeyInfo(Files.readAllBytes(folder.resolve(name + ".pem")), metadata);
                } catch (java.io.IOException error) {
                    throw new java.io.UncheckedIOException(error);
                }
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                throw new UnsupportedOperationException();
            }
        };
        for (CompressionType codec : CompressionType.values()) {
            for (String way : WAYS) {
                String topic = namespace + "/sealed-" + codec + "-" + way;
                try (Producer<byte[]> producer = sending(client.newProducer().topic(topic), codec, way)
                        .addEncryptionKey("one").addEncryptionKey("two").cryptoKeyReader(keys).create()) {
                    List<CompletableFuture<?>> sent = new ArrayList<>();
                    for (int number = 0; number < 3; number++) {
                        String value = "x".repeat(number * LARGE) + number;
                        sent.add(producer.newMessage().key("k" + number)
                                .value(value.getBytes(StandardCharsets.UTF_8)).sendAsync());
                    }
                    waitFor(producer, sent);
                }
                said(topic);
            }
        }
    }

    private static void delayed(PulsarClient client, String topic) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).create()) {
            for (int number = 0; number < 3; number++) {
                producer.newMessage().value(new byte[] {(byte) number}).deliverAfter(number, TimeUnit.HOURS).send();
            }
        }
        said(topic);
    }

    private static void acknowledge(PulsarClient client, String topic, String subscription, int count) throws Exception {
        try (Consumer<byte[]> consumer = client.newConsumer().topic(topic).subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Shared).isAckReceiptEnabled(true)
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe()) {
            List<Message<byte[]>> taken = new ArrayList<>();
            while (taken.size() < count) {
                Message<byte[]> message = consumer.receive(WAIT_S, TimeUnit.SECONDS);
                if (message == null) {
                    throw new IllegalStateException("only " + taken.size() + " messages came");
                }
                taken.add(message);
            }
            taken.sort(java.util.Comparator.comparing(Message::getMessageId));
            for (int number = 0; number < count; number++) {
                if (number < 3 || number % 4 == 0) {
                    consumer.acknowledge(taken.get(number));
                }
            }
        }
        said(topic);
    }

    // ---- both ----

    private static void waitFor(Producer<?> producer, List<? extends CompletableFuture<?>> sent) throws Exception {
        producer.flush();
        for (CompletableFuture<?> each : sent) {
            each.get(WAIT_S, TimeUnit.SECONDS);
        }
    }

    private static void said(String topic) {
        System.out.println("filled " + topic);
    }
}
