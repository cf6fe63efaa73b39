package bkspark.interop;

import java.lang.reflect.Method;
import java.util.zip.CRC32;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;

/** Reads a range of entries in one of three ways: {@code single}, {@code batch} or {@code unconfirmed}. */
final class Reader {
    interface Sink {
        void entry(int size, long crc32);
    }

    /** Entries asked for at once: enough to pipeline, few enough that 1 MiB entries fit the heap. */
    private static final int RANGE = 64;

    private static final long BATCH_BYTES = 4 << 20;

    private final ReadHandle handle;
    private final String how;
    private int batchReads;

    Reader(ReadHandle handle, String how) {
        this.handle = handle;
        this.how = how;
    }

    /** Passes every entry of first..last, both included, to the sink in order. */
    void read(long first, long last, Sink sink) throws Exception {
        long next = first;
        while (next <= last) {
            try (LedgerEntries entries = fetch(next, last)) {
                for (LedgerEntry entry : entries) {
                    if (entry.getEntryId() != next) {
                        throw new IllegalStateException("entry " + entry.getEntryId() + " where " + next + " is due");
                    }
                    CRC32 crc = new CRC32();
                    crc.update(entry.getEntryNioBuffer());
                    sink.entry(entry.getEntryBuffer().readableBytes(), crc.getValue());
                    next++;
                }
            }
        }
    }

    private LedgerEntries fetch(long next, long last) throws Exception {
        long end = Math.min(last, next + RANGE - 1);
        return switch (how) {
            case "single" -> handle.read(next, end);
            case "unconfirmed" -> handle.readUnconfirmed(next, end);
            case "batch" -> {
                LedgerEntries entries = handle.batchRead(next, (int) (end - next + 1), BATCH_BYTES);
                batchReads++;
                yield entries;
            }
            default -> throw new IllegalArgumentException("no way to read called " + how);
        };
    }

    /** How many answers came by the batch opcode: 0 when the handle fell back to single reads. */
    int batchReads() throws ReflectiveOperationException {
        // Apache's client hides the fallback; a test that means batch reads has to know.
        Method fallsBack = LedgerHandle.class.getDeclaredMethod("notSupportBatchRead");
        fallsBack.setAccessible(true);
        return (Boolean) fallsBack.invoke(handle) ? 0 : batchReads;
    }
}
