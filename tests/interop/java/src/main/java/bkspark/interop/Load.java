package bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.Unpooled;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Loads of Apache's client, measured: ledgers of E3/Qw3/Qa2, CRC32C and an empty password. Times are in seconds.
 *
 * <pre>
 * load  what=add         entries size window           {"ledger", "seconds"}
 * load  what=lone_add    entries size                  {"ledger", "seconds", "p50", "p99"}    one add in flight
 * load  what=read        ledgers entries per_call calls_in_flight how    {"seconds"}    how: single or batch
 * load  what=recover     ledger                        {"seconds", "last_entry"}
 * </pre>
 *
 * A read goes through ledgers in turn, in calls of {@code per_call} entries, again from the beginning at the end of a
 * ledger.
 */
final class Load {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PASSWORD = new byte[0];
    private static final long BATCH_BYTES = 4 << 20;
    private static final double NANOS = 1e9;
    private static final int TIMEOUT_SECONDS = 60;

    private Load() {}

    static ClientConfiguration clientConfiguration(String uri, boolean isV2) {
        ClientConfiguration configuration = Commands.clientConfiguration(uri, isV2);
        // By default a ledger takes 5,000 adds a second.
        configuration.setThrottleValue(0);
        // A request that waits for 5 s on a busy machine would end the load.
        configuration.setAddEntryTimeout(TIMEOUT_SECONDS);
        configuration.setReadEntryTimeout(TIMEOUT_SECONDS);
        return configuration;
    }

    static ObjectNode run(BookKeeper client, JsonNode request) throws Exception {
        return switch (request.required("what").textValue()) {
            case "add" -> add(client, number(request, "entries"), number(request, "size"), number(request, "window"));
            case "lone_add" -> loneAdd(client, number(request, "entries"), number(request, "size"));
            case "read" -> read(client, request);
            case "recover" -> recover(client, request.required("ledger").longValue());
            default -> throw new IllegalArgumentException("no such load");
        };
    }

    private static ObjectNode add(BookKeeper client, int entries, int size, int window) throws Exception {
        byte[] payload = Writer.payload(0, size);
        Semaphore room = new Semaphore(window);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (WriteHandle writer = create(client)) {
            long began = System.nanoTime();
            for (int i = 0; i < entries && failure.get() == null; i++) {
                room.acquire();
                // A buffer for each: duplicates of one share state that several threads change.
                writer.appendAsync(Unpooled.wrappedBuffer(payload)).whenComplete((entry, error) -> {
                    if (error != null) {
                        failure.set(error);
                    }
                    room.release();
                });
            }
            room.acquire(window);
            if (failure.get() != null) {
                throw new IllegalStateException("an add failed: " + failure.get());
            }
            return since(began).put("ledger", writer.getId());
        }
    }

    private static ObjectNode loneAdd(BookKeeper client, int entries, int size) throws Exception {
        byte[] payload = Writer.payload(0, size);
        long[] nanos = new long[entries];
        try (WriteHandle writer = create(client)) {
            long began = System.nanoTime();
            for (int i = 0; i < entries; i++) {
                long asked = System.nanoTime();
                writer.append(payload);
                nanos[i] = System.nanoTime() - asked;
            }
            ObjectNode answer = since(began).put("ledger", writer.getId());
            Arrays.sort(nanos);
            return answer.put("p50", nanos[entries / 2] / NANOS).put("p99", nanos[entries * 99 / 100] / NANOS);
        }
    }

    private static ObjectNode read(BookKeeper client, JsonNode request) throws Exception {
        List<Reading> readings = new ArrayList<>();
        try {
            for (JsonNode ledger : request.required("ledgers")) {
                readings.add(new Reading(open(client, ledger.longValue(), false)));
            }
            return read(readings, request);
        } finally {
            for (Reading reading : readings) {
                reading.reader.close();
            }
        }
    }

    private static ObjectNode read(List<Reading> readings, JsonNode request) throws Exception {
        int entries = number(request, "entries");
        int perCall = number(request, "per_call");
        int callsInFlight = number(request, "calls_in_flight");
        boolean isBatch = request.required("how").textValue().equals("batch");
        Queue<CompletableFuture<LedgerEntries>> calls = new ArrayDeque<>();
        long began = System.nanoTime();
        int turn = 0;
        int asked = 0;
        int found = 0;
        while (found < entries) {
            while (asked < entries && calls.size() < callsInFlight) {
                Reading reading = readings.get(turn++ % readings.size());
                int count = reading.countOf(perCall);
                calls.add(reading.ask(count, isBatch));
                asked += count;
            }
            found += count(calls.remove().get());
            if (calls.isEmpty() && asked >= entries && found < asked) {
                throw new IllegalStateException(asked + " entries were asked for and " + found + " came");
            }
        }
        return since(began).put("entries", found);
    }

    /** A ledger that is read again and again, and where the next call begins. */
    private static final class Reading {
        private final ReadHandle reader;
        private final long end;
        private long next = 0;

        Reading(ReadHandle reader) {
            this.reader = reader;
            this.end = reader.getLastAddConfirmed() + 1;
        }

        int countOf(int perCall) {
            return (int) Math.min(perCall, end - next);
        }

        CompletableFuture<LedgerEntries> ask(int count, boolean isBatch) {
            long first = next;
            next = (next + count) % end;
            return isBatch
                    ? reader.batchReadAsync(first, count, BATCH_BYTES)
                    : reader.readAsync(first, first + count - 1);
        }
    }

    private static int count(LedgerEntries entries) {
        int count = 0;
        try (entries) {
            for (LedgerEntry entry : entries) {
                count += entry.getLength() > 0 ? 1 : 0;
            }
        }
        return count;
    }

    private static ObjectNode recover(BookKeeper client, long ledger) throws Exception {
        long began = System.nanoTime();
        try (ReadHandle reader = open(client, ledger, true)) {
            return since(began).put("last_entry", reader.getLastAddConfirmed());
        }
    }

    private static WriteHandle create(BookKeeper client) throws Exception {
        return client.newCreateLedgerOp()
                .withEnsembleSize(3)
                .withWriteQuorumSize(3)
                .withAckQuorumSize(2)
                .withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD)
                .execute()
                .get();
    }

    private static ReadHandle open(BookKeeper client, long ledger, boolean recover) throws Exception {
        return client.newOpenLedgerOp()
                .withLedgerId(ledger)
                .withDigestType(DigestType.CRC32C)
                .withPassword(PASSWORD)
                .withRecovery(recover)
                .execute()
                .get();
    }

    private static ObjectNode since(long began) {
        return JSON.createObjectNode().put("seconds", (System.nanoTime() - began) / NANOS);
    }

    private static int number(JsonNode request, String name) {
        return request.required(name).intValue();
    }
}
