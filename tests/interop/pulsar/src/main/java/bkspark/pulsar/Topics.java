package bkspark.pulsar;

import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerCryptoFailureAction;
import org.apache.pulsar.client.api.CryptoKeyReader;
import org.apache.pulsar.client.api.EncryptionKeyInfo;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;

/**
 * Topics of every kind of message, and what Pulsar's own reader gets of them.
 *
 * <p>{@code fill URL NAMESPACE} produces; it says "filled TOPIC" for each. {@code transactions URL TOPIC} produces in
 * transactions: a plain message, a committed and an aborted one, one that is left open, a plain one. {@code dump URL
 * TOPIC…} reads each topic from its beginning with a reader and prints a line for each message, JSON of texts and hex;
 * {@code dump-compacted} reads one as it is compacted, {@code count} measures a reader, {@code consume} a
 * consumer. {@code keyed}, {@code steady} and {@code batches} produce other topics.
 */
public final class Topics {
    private static final int WAIT_S = 120;
    private static final int CHUNK_BYTES = 4000;
    private static final int QUEUE_SIZE = 10_000;
    /** Different values, which are more than a codec looks back. */
    private static final int VALUES = 512;
    private static final HexFormat HEX = HexFormat.of();

    private Topics() {
    }

    /** A record of the AVRO and JSON topics. */
    public static final class Click {
        public int number;
        public String page;
        public List<Long> spots;
        public Map<String, String> tags;
    }

    /** What the record became later. */
    public static final class LaterClick {
        public int number;
        public String page;
        public List<Long> spots;
        public Map<String, String> tags;
        public Double weight;
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1])
                .enableTransaction(arguments[0].equals("transactions"))
                .operationTimeout(WAIT_S, TimeUnit.SECONDS).build()) {
            switch (arguments[0]) {
                case "fill" -> fill(client, arguments[2]);
                case "batches" -> batches(client, arguments[2], Integer.parseInt(arguments[3]),
                        Integer.parseInt(arguments[4]),
                        CompressionType.valueOf(arguments.length > 5 ? arguments[5] : "NONE"));
                case "steady" -> steady(client, arguments[2], Integer.parseInt(arguments[3]),
                        Integer.parseInt(arguments[4]));
                case "transactions" -> transactions(client, arguments[2]);
                case "dump" -> {
                    for (int place = 2; place < arguments.length; place++) {
                        dump(client, arguments[place], false);
                    }
                }
                case "keyed" -> keyed(client, arguments[2]);
                case "dump-compacted" -> dump(client, arguments[2], true);
                case "count" -> count(client, arguments[2], Integer.parseInt(arguments[3]));
                case "consume" -> consume(client, arguments[2], Integer.parseInt(arguments[3]));
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        }
    }

    // ---- producing ----

    private static void fill(PulsarClient client, String namespace) throws Exception {
        for (CompressionType codec : CompressionType.values()) {
            for (boolean isBatched : new boolean[] {false, true}) {
                String name = namespace + "/bytes-" + codec + (isBatched ? "-batched" : "-single");
                ProducerBuilder<byte[]> builder = client.newProducer().compressionType(codec);
                bytes(batched(builder.topic(name), isBatched));
                said(name);
            }
            String name = namespace + "/chunks-" + codec;
            chunks(client, name, codec);
            said(name);
        }
        encrypted(client, namespace + "/encrypted");
        schemas(client, namespace);
    }

    private static <T> ProducerBuilder<T> batched(ProducerBuilder<T> builder, boolean isBatched) {
        return builder.enableBatching(isBatched).batchingMaxPublishDelay(1, TimeUnit.HOURS).batchingMaxMessages(5)
                .batcherBuilder(BatcherBuilder.DEFAULT).sendTimeout(WAIT_S, TimeUnit.SECONDS);
    }

    private static void bytes(ProducerBuilder<byte[]> builder) throws Exception {
        try (Producer<byte[]> producer = builder.create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 18; number++) {
                TypedMessageBuilder<byte[]> message = producer.newMessage();
                switch (number % 4) {
                    case 1 -> message.key("key " + number + " ü");
                    case 2 -> message.keyBytes(new byte[] {(byte) number, (byte) 0xff, 0});
                    case 3 -> message.orderingKey(new byte[] {7, (byte) number}).key("k");
                    default -> { }
                }
                if (number % 3 == 0) {
                    message.property("number", Integer.toString(number)).property("ä", "ö");
                }
                if (number % 5 == 0) {
                    message.eventTime(1_600_000_000_000L + number);
                }
                byte[] value = "x".repeat(number * number * 40).getBytes(StandardCharsets.UTF_8);
                sent.add(message.value(number % 7 == 6 ? null : value).sendAsync());
                if (number == 15) {
                    // A batch of one follows.
                    producer.flush();
                    sent.add(producer.newMessage().value(new byte[] {1, 2, 3}).sendAsync());
                    producer.flush();
                }
            }
            producer.flush();
            for (CompletableFuture<MessageId> each : sent) {
                each.get(WAIT_S, TimeUnit.SECONDS);
            }
        }
    }

    private static void chunks(PulsarClient client, String topic, CompressionType codec) throws Exception {
        try (Producer<byte[]> one = chunking(client, topic, codec);
                Producer<byte[]> other = chunking(client, topic, codec)) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                // Of random bytes, so that what is compressed is cut as well.
                byte[] value = new byte[CHUNK_BYTES * number + 50];
                new java.util.Random(number).nextBytes(value);
                sent.add(one.newMessage().key("one " + number).value(value).sendAsync());
                sent.add(other.newMessage().key("other " + number).value(value).sendAsync());
            }
            for (CompletableFuture<MessageId> each : sent) {
                each.get(WAIT_S, TimeUnit.SECONDS);
            }
        }
    }

    private static Producer<byte[]> chunking(PulsarClient client, String topic, CompressionType codec)
            throws Exception {
        return client.newProducer().topic(topic).enableBatching(false).enableChunking(true)
                .chunkMaxMessageSize(CHUNK_BYTES).compressionType(codec).sendTimeout(WAIT_S, TimeUnit.SECONDS).create();
    }

    private static void encrypted(PulsarClient client, String topic) throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("RSA");
        generator.initialize(2048);
        KeyPair pair = generator.generateKeyPair();
        byte[] pem = ("-----BEGIN PUBLIC KEY-----\n"
                + Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(pair.getPublic().getEncoded())
                + "\n-----END PUBLIC KEY-----\n").getBytes(StandardCharsets.US_ASCII);
        CryptoKeyReader keys = new CryptoKeyReader() {
            private static final long serialVersionUID = 1L;

            @Override
            public EncryptionKeyInfo getPublicKey(String name, Map<String, String> metadata) {
                return new EncryptionKeyInfo(pem, metadata);
            }

            @Override
            public EncryptionKeyInfo getPrivateKey(String name, Map<String, String> metadata) {
                throw new UnsupportedOperationException();
            }
        };
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                .addEncryptionKey("key-1").cryptoKeyReader(keys).create()) {
            producer.send("secret".getBytes(StandardCharsets.UTF_8));
        }
        said(topic);
    }

    private static void schemas(PulsarClient client, String namespace) throws Exception {
        values(client, namespace, "string", Schema.STRING, List.of("", "hällo"));
        values(client, namespace, "bool", Schema.BOOL, List.of(true, false));
        values(client, namespace, "int8", Schema.INT8, List.of((byte) -5, (byte) 7));
        values(client, namespace, "int16", Schema.INT16, List.of((short) -300));
        values(client, namespace, "int32", Schema.INT32, List.of(-70000, 5));
        values(client, namespace, "int64", Schema.INT64, List.of(Long.MIN_VALUE, 5L));
        values(client, namespace, "float", Schema.FLOAT, List.of(1.5f));
        values(client, namespace, "double", Schema.DOUBLE, List.of(-2.25));
        values(client, namespace, "date", Schema.DATE, List.of(new java.util.Date(86_400_000L * 365 - 1)));
        values(client, namespace, "time", Schema.TIME, List.of(new java.sql.Time(1234)));
        values(client, namespace, "timestamp", Schema.TIMESTAMP, List.of(new java.sql.Timestamp(1500)));
        values(client, namespace, "instant", Schema.INSTANT, List.of(java.time.Instant.ofEpochSecond(2, 999_999_999)));
        values(client, namespace, "local-date", Schema.LOCAL_DATE, List.of(java.time.LocalDate.of(1971, 1, 1)));
        values(client, namespace, "local-time", Schema.LOCAL_TIME, List.of(java.time.LocalTime.ofNanoOfDay(1234)));
        values(client, namespace, "local-date-time", Schema.LOCAL_DATE_TIME,
                List.of(java.time.LocalDateTime.of(1970, 1, 2, 0, 0, 1)));
        Click click = new Click();
        click.number = 5;
        click.page = "/ü";
        click.spots = List.of(1L, 1L << 40);
        click.tags = Map.of("a", "b");
        values(client, namespace, "json", Schema.JSON(Click.class), List.of(click, new Click()));
        values(client, namespace, "avro", Schema.AVRO(Click.class), List.of(click, new Click()));
        LaterClick later = new LaterClick();
        later.number = 6;
        later.weight = 0.5;
        values(client, namespace, "avro", Schema.AVRO(LaterClick.class), List.of(later));
        values(client, namespace, "kv-inline", Schema.KeyValue(Schema.STRING, Schema.INT32, KeyValueEncodingType.INLINE),
                List.of(new KeyValue<>("k", 258)));
        values(client, namespace, "kv-separated",
                Schema.KeyValue(Schema.STRING, Schema.AVRO(Click.class), KeyValueEncodingType.SEPARATED),
                List.of(new KeyValue<>("k", click)));
    }

    private static <T> void values(PulsarClient client, String namespace, String name, Schema<T> schema, List<T> values)
            throws Exception {
        String topic = namespace + "/schema-" + name;
        try (Producer<T> producer = client.newProducer(schema).topic(topic).create()) {
            for (T value : values) {
                producer.sendAsync(value);
            }
            producer.flush();
        }
        said(topic);
    }

    /** Sends messages of a size, in batches, as fast as it goes; half of each value can be compressed. */
    private static void batches(PulsarClient client, String topic, int count, int size, CompressionType codec)
            throws Exception {
        java.util.Random random = new java.util.Random(1);
        byte[][] values = new byte[VALUES][size];
        for (byte[] value : values) {
            byte[] half = new byte[size - size / 2];
            random.nextBytes(half);
            System.arraycopy(half, 0, value, 0, half.length);
        }
        try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true).compressionType(codec)
                .batchingMaxPublishDelay(10, TimeUnit.MILLISECONDS).sendTimeout(WAIT_S, TimeUnit.SECONDS).create()) {
            for (int number = 0; number < count; number++) {
                producer.newMessage().key("k" + number).value(values[number % VALUES]).sendAsync();
            }
            producer.flush();
        }
        said(topic);
    }

    /** Sends numbers in small batches, so many a second, through whatever happens to the topic. */
    private static void steady(PulsarClient client, String topic, int count, int perSecond) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).blockIfQueueFull(true).sendTimeout(0,
                TimeUnit.SECONDS).batchingMaxPublishDelay(50, TimeUnit.MILLISECONDS).create()) {
            System.out.println("began " + topic);
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long due = began + number * (1_000_000_000L / perSecond);
                TimeUnit.NANOSECONDS.sleep(due - System.nanoTime());
                producer.newMessage().value(Integer.toString(number).getBytes(StandardCharsets.UTF_8)).sendAsync();
            }
            producer.flush();
        }
        said(topic);
    }

    /** Sends values of a few keys again and again, in batches, and deletes one of them. */
    private static void keyed(PulsarClient client, String topic) throws Exception {
        try (Producer<byte[]> producer = batched(client.newProducer().topic(topic), true).create()) {
            for (int number = 0; number < 43; number++) {
                byte[] value = ("value " + number).getBytes(StandardCharsets.UTF_8);
                producer.newMessage().key("key " + number % 7).value(number == 41 ? null : value).sendAsync();
            }
            producer.flush();
        }
        said(topic);
    }

    private static void transactions(PulsarClient client, String topic) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).sendTimeout(0, TimeUnit.SECONDS)
                .enableBatching(false).create()) {
            producer.send("plain 0".getBytes(StandardCharsets.UTF_8));
            for (String end : List.of("committed", "aborted", "open")) {
                Transaction transaction = client.newTransaction().withTransactionTimeout(10, TimeUnit.MINUTES).build()
                        .get(WAIT_S, TimeUnit.SECONDS);
                producer.newMessage(transaction).value(end.getBytes(StandardCharsets.UTF_8)).send();
                if (end.equals("committed")) {
                    transaction.commit().get(WAIT_S, TimeUnit.SECONDS);
                } else if (end.equals("aborted")) {
                    transaction.abort().get(WAIT_S, TimeUnit.SECONDS);
                }
            }
            producer.send("plain 1".getBytes(StandardCharsets.UTF_8));
        }
        said(topic);
    }

    private static void said(String topic) {
        System.out.println("filled " + topic);
    }

    // ---- reading ----

    private static void dump(PulsarClient client, String topic, boolean isCompacted) throws Exception {
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES).topic(topic).startMessageId(MessageId.earliest)
                .readCompacted(isCompacted)
                .cryptoFailureAction(ConsumerCryptoFailureAction.CONSUME).create()) {
            while (reader.hasMessageAvailable()) {
                System.out.println(line(reader.readNext(WAIT_S, TimeUnit.SECONDS)));
            }
        }
    }

    /** Says how long a reader took for so many messages, in ms, from the first one on. */
    private static void count(PulsarClient client, String topic, int messages) throws Exception {
        try (Reader<byte[]> reader = client.newReader(Schema.BYTES).topic(topic).startMessageId(MessageId.earliest)
                .receiverQueueSize(QUEUE_SIZE).create()) {
            reader.readNext(WAIT_S, TimeUnit.SECONDS);
            long began = System.nanoTime();
            for (int number = 1; number < messages; number++) {
                reader.readNext(WAIT_S, TimeUnit.SECONDS);
            }
            System.out.println((System.nanoTime() - began) / 1_000_000);
        }
    }

    /** Says how long a consumer of a new subscription took, which acknowledges each message, as {@link #count}. */
    private static void consume(PulsarClient client, String topic, int messages) throws Exception {
        String subscription = "measured-" + System.nanoTime();
        try (Consumer<byte[]> consumer = client.newConsumer(Schema.BYTES).topic(topic).subscriptionName(subscription)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .receiverQueueSize(QUEUE_SIZE).subscribe()) {
            consumer.acknowledgeAsync(consumer.receive(WAIT_S, TimeUnit.SECONDS));
            long began = System.nanoTime();
            for (int number = 1; number < messages; number++) {
                consumer.acknowledgeAsync(consumer.receive(WAIT_S, TimeUnit.SECONDS));
            }
            System.out.println((System.nanoTime() - began) / 1_000_000);
            consumer.unsubscribe();
        }
    }

    private static String line(Message<byte[]> message) {
        Map<String, String> fields = new TreeMap<>();
        fields.put("topic", text(message.getTopicName()));
        fields.put("id", text(HEX.formatHex(message.getMessageId().toByteArray())));
        fields.put("key", message.hasKey() ? hex(message.getKeyBytes()) : "null");
        fields.put("ordering_key", message.hasOrderingKey() ? hex(message.getOrderingKey()) : "null");
        fields.put("value", message.getData() == null || isNull(message) ? "null" : hex(message.getData()));
        fields.put("publish_time", Long.toString(message.getPublishTime()));
        fields.put("event_time", Long.toString(message.getEventTime()));
        fields.put("sequence_id", Long.toString(message.getSequenceId()));
        fields.put("producer", text(message.getProducerName()));
        fields.put("schema_version", message.getSchemaVersion() == null ? "null" : hex(message.getSchemaVersion()));
        fields.put("index", message.getIndex().map(index -> Long.toString(index)).orElse("null"));
        fields.put("properties", message.getProperties().entrySet().stream().sorted(Map.Entry.comparingByKey())
                .map(each -> "[" + hex(each.getKey().getBytes(StandardCharsets.UTF_8)) + ","
                        + hex(each.getValue().getBytes(StandardCharsets.UTF_8)) + "]")
                .collect(Collectors.joining(",", "[", "]")));
        return fields.entrySet().stream().map(each -> "\"" + each.getKey() + "\":" + each.getValue())
                .collect(Collectors.joining(",", "{", "}"));
    }

    private static boolean isNull(Message<byte[]> message) {
        return message.getValue() == null;
    }

    private static String hex(byte[] octets) {
        return text(HEX.formatHex(octets));
    }

    private static String text(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\"";
    }
}
