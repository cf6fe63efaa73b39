package bkspark.pulsar;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;

/**
 * A user of a Pulsar broker: {@code produce URL TOPIC FROM TO} sends numbered messages, one an entry, and says "under
 * way" once the first of a hundred is acknowledged; {@code read URL TOPIC COUNT} reads as many from the beginning and
 * fails unless they are the numbered ones in order.
 */
public final class Peer {
    private static final int WAIT_S = 120;
    private static final int WINDOW = 100;

    private Peer() {
    }

    public static void main(String[] arguments) throws Exception {
        try (PulsarClient client = PulsarClient.builder().serviceUrl(arguments[1])
                .operationTimeout(WAIT_S, TimeUnit.SECONDS).build()) {
            if (arguments[0].equals("produce")) {
                produce(client, arguments[2], Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]));
            } else {
                read(client, arguments[2], Integer.parseInt(arguments[3]));
            }
        }
    }

    private static void produce(PulsarClient client, String topic, int from, int to) throws Exception {
        try (Producer<byte[]> producer = client.newProducer().topic(topic).enableBatching(false)
                .sendTimeout(WAIT_S, TimeUnit.SECONDS).blockIfQueueFull(true).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = from; number < to; number++) {
                sent.add(producer.sendAsync(("message " + number).getBytes(StandardCharsets.UTF_8)));
                if (sent.size() == WINDOW) {
                    sent.get(0).get(WAIT_S, TimeUnit.SECONDS);
                    System.out.println("under way");
                }
            }
            for (CompletableFuture<MessageId> each : sent) {
                each.get(WAIT_S, TimeUnit.SECONDS);
            }
            System.out.println("sent " + sent.size());
        }
    }

    private static void read(PulsarClient client, String topic, int count) throws Exception {
        try (Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create()) {
            for (int number = 0; number < count; number++) {
                Message<byte[]> message = reader.readNext(WAIT_S, TimeUnit.SECONDS);
                String wanted = "message " + number;
                String found = message == null ? "nothing" : new String(message.getData(), StandardCharsets.UTF_8);
                if (!found.equals(wanted)) {
                    throw new IllegalStateException("wanted '" + wanted + "', found '" + found + "'");
                }
            }
            System.out.println("read " + count);
        }
    }
}
