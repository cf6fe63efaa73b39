package bkspark.interop;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.client.api.WriteAdvHandle;
import org.apache.bookkeeper.client.api.WriteHandle;

/**
 * One ledger being written, whichever of Apache's two kinds of handle it has.
 *
 * <p>Byte {@code j} of entry {@code i} is {@code i * 31 + j * 7 + j / 256}, modulo 256; {@code payload} in
 * {@code tests/interop/peer.py} computes the same.
 */
final class Writer {
    private interface Append {
        CompletableFuture<Long> append(long entryId, ByteBuf payload);
    }

    private final ReadHandle handle;
    private final Append append;
    private long nextEntry;

    private Writer(ReadHandle handle, Append append) {
        this.handle = handle;
        this.append = append;
    }

    static Writer of(WriteHandle handle) {
        return new Writer(handle, (entryId, payload) -> handle.appendAsync(payload));
    }

    static Writer of(WriteAdvHandle handle) {
        return new Writer(handle, handle::writeAsync);
    }

    /** Appends entries of the given sizes, all in flight at once; returns the last entry id when all are confirmed. */
    long append(int[] sizes) throws Exception {
        List<CompletableFuture<Long>> adds = new ArrayList<>(sizes.length);
        for (int size : sizes) {
            adds.add(append.append(nextEntry, Unpooled.wrappedBuffer(payload(nextEntry, size))));
            nextEntry++;
        }
        long last = -1;
        for (CompletableFuture<Long> add : adds) {
            last = add.get();
        }
        return last;
    }

    static byte[] payload(long entryId, int size) {
        byte[] bytes = new byte[size];
        for (int j = 0; j < size; j++) {
            bytes[j] = (byte) (entryId * 31 + j * 7 + (j >> 8));
        }
        return bytes;
    }

    void close() throws Exception {
        handle.close();
    }

    long ledgerId() {
        return handle.getId();
    }

    long length() {
        return handle.getLength();
    }

    long lastConfirmed() {
        return handle.getLastAddConfirmed();
    }
}
