package bkspark.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/**
 * Every call that a user of Apache's client makes, each checked on the spot, in one protocol.
 *
 * <p>A check's result is null, or what went wrong. All work on three bookies of any kind and leave no ledger open.
 */
final class Calls implements AutoCloseable {
    private interface Check {
        void run() throws Exception;
    }

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PASSWORD = "secret".getBytes();
    private static final long DEADLINE_MS = 60_000;

    /** What a frame of 5 MiB leaves for a payload in both protocols: keys, ids and digest take less than this. */
    private static final int LARGEST = 5 * 1024 * 1024 - 300;

    private final BookKeeper client;
    private final BookKeeperAdmin admin;
    private final String uri;
    private final boolean isV2;
    private final long firstId;

    /** {@code firstId}: three ledger ids from here on are chosen for ledgers with ids of their own. */
    Calls(String uri, boolean isV2, long firstId) throws Exception {
        ClientConfiguration configuration = Commands.clientConfiguration(uri, isV2);
        configuration.setExplictLacInterval(20);
        this.uri = uri;
        client = new BookKeeper(configuration);
        admin = new BookKeeperAdmin(client);
        this.isV2 = isV2;
        this.firstId = firstId;
    }

    @Override
    public void close() throws Exception {
        admin.close();
        client.close();
    }

    /** Runs all checks; answers {"passed": [names], "failed": {name: what}}. */
    ObjectNode run() {
        Map<String, Check> checks = new LinkedHashMap<>();
        for (DigestType digest : DigestType.values()) {
            checks.put("create, add, read, close with " + digest, () -> roundTrip(digest));
        }
        checks.put("entries of 0 bytes to the frame limit", this::entrySizes);
        checks.put("striped ledger", this::striped);
        checks.put("entry ids of the caller", this::advanced);
        checks.put("ledger ids beyond 31 bits", this::largeIds);
        checks.put("LAC of an open ledger", this::lastConfirmed);
        checks.put("explicit LAC", this::explicitLac);
        checks.put("unconfirmed reads", this::unconfirmed);
        checks.put("recovery and fencing", this::recovery);
        checks.put("wrong password", this::wrongPassword);
        checks.put("authentication that the bookies do without", this::authentication);
        checks.put("delete and list", this::deleteAndList);
        checks.put("bookie info", this::bookieInfo);
        checks.put("entries of a ledger by the administrator", this::adminEntries);
        if (isV2) {
            checks.put("batch reads", this::batchReads);
        } else {
            checks.put("long poll", this::longPoll);
            checks.put("deferred sync and force", this::deferredSync);
            checks.put("list of the entries of a ledger", this::entryLists);
        }
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode passed = answer.putArray("passed");
        ObjectNode failed = answer.putObject("failed");
        checks.forEach((name, check) -> {
            try {
                check.run();
                passed.add(name);
            } catch (Exception | AssertionError failure) {
                failure.printStackTrace();
                failed.put(name, failure.toString());
            }
        });
        return answer;
    }

    // ---- writing and reading ----

    private void roundTrip(DigestType digest) throws Exception {
        LedgerHandle writer = client.createLedger(3, 3, 2, digest, PASSWORD);
        for (int i = 0; i < 50; i++) {
            same(i, writer.addEntry(Writer.payload(i, 1000)));
        }
        writer.close();
        LedgerHandle reader = client.openLedger(writer.getId(), digest, PASSWORD);
        same(50_000, reader.getLength());
        holds(reader, 50, 1000);
        reader.close();
    }

    private void entrySizes() throws Exception {
        int[] sizes = {0, 1, 65_536, LARGEST, 0};
        LedgerHandle writer = create(3, 3, 2);
        for (int i = 0; i < sizes.length; i++) {
            writer.addEntry(Writer.payload(i, sizes[i]));
        }
        writer.close();
        LedgerHandle reader = open(writer.getId());
        for (int i = 0; i < sizes.length; i++) {
            same(i, reader.readEntries(i, i).nextElement(), sizes[i]);
        }
        reader.close();
    }

    private void striped() throws Exception {
        LedgerHandle writer = create(3, 2, 2);
        add(writer, 0, 60);
        writer.close();
        LedgerHandle reader = open(writer.getId());
        holds(reader, 60, 1000);
        reader.close();
    }

    private void advanced() throws Exception {
        LedgerHandle writer = client.createLedgerAdv(3, 3, 2, DigestType.CRC32C, PASSWORD);
        List<CompletableFuture<Long>> added = new ArrayList<>();
        for (int id : new int[] {2, 0, 3, 1}) {
            CompletableFuture<Long> one = new CompletableFuture<>();
            added.add(one);
            writer.asyncAddEntry(id, Writer.payload(id, 1000), (code, ledger, entry, context) -> {
                if (code == BKException.Code.OK) {
                    one.complete(entry);
                } else {
                    one.completeExceptionally(BKException.create(code));
                }
            }, null);
        }
        for (CompletableFuture<Long> one : added) {
            one.get(DEADLINE_MS, TimeUnit.MILLISECONDS);
        }
        same(3, writer.getLastAddConfirmed());
        fails(BKException.Code.DuplicateEntryIdException, () -> writer.addEntry(1, new byte[1]));
        writer.close();
        LedgerHandle reader = open(writer.getId());
        holds(reader, 4, 1000);
        reader.close();
    }

    private void largeIds() throws Exception {
        for (long id = firstId; id < firstId + 3; id++) {
            LedgerHandle writer =
                    client.createLedgerAdv(id, 3, 3, 2, DigestType.CRC32C, PASSWORD, Collections.emptyMap());
            same(id, writer.getId());
            writer.addEntry(0, Writer.payload(0, 1000));
            writer.close();
            LedgerHandle reader = open(id);
            holds(reader, 1, 1000);
            reader.close();
        }
    }

    private void batchReads() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        add(writer, 0, 40);
        writer.close();
        LedgerHandle reader = open(writer.getId());
        int next = 0;
        while (next < 40) {
            for (LedgerEntry entry : Collections.list(reader.batchReadEntries(next, 15, 1 << 20))) {
                same(next++, entry, 1000);
            }
        }
        reader.close();
    }

    // ---- the end of an open ledger ----

    private void lastConfirmed() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
        same(-1, reader.getLastAddConfirmed());
        add(writer, 0, 10);
        // The last add carries the LAC before it; the explicit one may have come as well.
        require(reader.readLastConfirmed() >= 8, "readLastConfirmed");
        require(reader.tryReadLastConfirmed() >= 8, "tryReadLastConfirmed");
        holds(reader, 9, 1000);
        writer.close();
        reader.close();
    }

    private void explicitLac() throws Exception {
        LedgerHandle writer = create(3, 2, 2);
        add(writer, 0, 10);
        LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(DEADLINE_MS);
        while (reader.readExplicitLastConfirmed() < 9) {
            require(System.nanoTime() < deadline, "the explicit LAC did not come");
        }
        holds(reader, 10, 1000);
        writer.close();
        reader.close();
    }

    private void longPoll() throws Exception {
        LedgerHandle writer = create(3, 2, 2);
        LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
        writer.addEntry(Writer.payload(0, 1000));
        for (int id = 0; id < 8; id++) {
            // As Apache's own tailing readers do: ask again until the entry has come.
            CompletableFuture<LastConfirmedAndEntry> waiting =
                    reader.readLastAddConfirmedAndEntryAsync(id, DEADLINE_MS, id % 2 == 1);
            writer.addEntry(Writer.payload(id + 1, 1000));
            try (LastConfirmedAndEntry found = waiting.get(DEADLINE_MS, TimeUnit.MILLISECONDS)) {
                require(found.getLastAddConfirmed() >= id, "the LAC that was waited for");
                if (found.hasEntry()) {
                    same(id, found.getEntry().getEntryId());
                    require(
                            Arrays.equals(Writer.payload(id, 1000), found.getEntry().getEntryBytes()),
                            "entry " + id + " of a long poll");
                }
            }
        }
        try (LastConfirmedAndEntry nothing = reader.readLastAddConfirmedAndEntry(100, 50, false)) {
            require(!nothing.hasEntry(), "there is no entry 100");
        }
        writer.close();
        reader.close();
    }

    private void unconfirmed() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        add(writer, 0, 10);
        LedgerHandle reader = client.openLedgerNoRecovery(writer.getId(), DigestType.CRC32C, PASSWORD);
        int next = 0;
        for (LedgerEntry entry : Collections.list(reader.readUnconfirmedEntries(0, 9))) {
            same(next++, entry, 1000);
        }
        same(10, next);
        fails(BKException.Code.NoSuchEntryException, () -> reader.readUnconfirmedEntries(0, 20));
        writer.close();
        reader.close();
    }

    private void deferredSync() throws Exception {
        WriteHandle writer = client.newCreateLedgerOp()
                .withEnsembleSize(3)
                .withWriteQuorumSize(3)
                .withAckQuorumSize(2)
                .withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
                .withPassword(PASSWORD)
                .withWriteFlags(EnumSet.of(WriteFlag.DEFERRED_SYNC))
                .execute()
                .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
        for (int i = 0; i < 30; i++) {
            same(i, writer.append(Writer.payload(i, 1000)));
        }
        same(-1, writer.getLastAddConfirmed());
        writer.force().get(DEADLINE_MS, TimeUnit.MILLISECONDS);
        same(29, writer.getLastAddConfirmed());
        writer.close();
        LedgerHandle reader = open(writer.getId());
        holds(reader, 30, 1000);
        reader.close();
    }

    // ---- ownership ----

    private void recovery() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        add(writer, 0, 30);
        LedgerHandle reader = open(writer.getId());
        require(reader.isClosed(), "recovery closes");
        holds(reader, 30, 1000);
        int code = codeOf(() -> {
            // The bookie that refused last may be told of at the next add only.
            writer.addEntry(new byte[1]);
            return writer.addEntry(new byte[1]);
        });
        require(
                code == BKException.Code.LedgerFencedException || code == BKException.Code.NotEnoughBookiesException,
                "the writer was told " + code);
        reader.close();
    }

    private void authentication() throws Exception {
        ClientConfiguration configuration = Commands.clientConfiguration(uri, isV2);
        configuration.setClientAuthProviderFactoryClass(TokenAuth.class.getName());
        try (BookKeeper authenticating = new BookKeeper(configuration)) {
            LedgerHandle writer = authenticating.createLedger(3, 3, 2, DigestType.CRC32C, PASSWORD);
            add(writer, 0, 3);
            writer.close();
            LedgerHandle reader = open(writer.getId());
            holds(reader, 3, 1000);
            reader.close();
        }
    }

    private void wrongPassword() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        add(writer, 0, 1);
        fails(
                BKException.Code.UnauthorizedAccessException,
                () -> client.openLedger(writer.getId(), DigestType.CRC32C, "another".getBytes()));
        writer.close();
    }

    private void deleteAndList() throws Exception {
        LedgerHandle writer = create(3, 3, 2);
        writer.close();
        require(ids().contains(writer.getId()), "a ledger is listed");
        client.deleteLedger(writer.getId());
        require(!ids().contains(writer.getId()), "a deleted ledger is not listed");
        fails(BKException.Code.NoSuchLedgerExistsOnMetadataServerException, () -> open(writer.getId()));
    }

    // ---- the administrator's ----

    private void bookieInfo() throws Exception {
        var all = client.getBookieInfo();
        same(new HashSet<>(admin.getAvailableBookies()).size(), all.size());
        all.forEach((bookie, info) -> require(
                0 < info.getFreeDiskSpace() && info.getFreeDiskSpace() <= info.getTotalDiskSpace(), "space of " + bookie));
    }

    private void adminEntries() throws Exception {
        LedgerHandle writer = create(3, 2, 2);
        add(writer, 0, 20);
        writer.close();
        int next = 0;
        for (LedgerEntry entry : admin.readEntries(writer.getId(), 0, -1)) {
            same(next++, entry, 1000);
        }
        same(20, next);
    }

    private void entryLists() throws Exception {
        LedgerHandle writer = create(3, 2, 2);
        add(writer, 0, 20);
        writer.close();
        List<BookieId> ensemble = writer.getLedgerMetadata().getEnsembleAt(0);
        for (int slot = 0; slot < 3; slot++) {
            AvailabilityOfEntriesOfLedger held = admin.asyncGetListOfEntriesOfLedger(ensemble.get(slot), writer.getId())
                    .get(DEADLINE_MS, TimeUnit.MILLISECONDS);
            for (int id = 0; id < 20; id++) {
                boolean isHere = id % 3 == slot || (id + 1) % 3 == slot;
                require(held.isEntryAvailable(id) == isHere, "entry " + id + " at slot " + slot);
            }
        }
    }

    // ---- parts of checks ----

    private LedgerHandle create(int ensemble, int writeQuorum, int ackQuorum) throws Exception {
        return client.createLedger(ensemble, writeQuorum, ackQuorum, DigestType.CRC32C, PASSWORD);
    }

    private LedgerHandle open(long ledger) throws Exception {
        return client.openLedger(ledger, DigestType.CRC32C, PASSWORD);
    }

    private static void add(LedgerHandle writer, int first, int count) throws Exception {
        for (int i = first; i < first + count; i++) {
            writer.addEntry(Writer.payload(i, 1000));
        }
    }

    private Set<Long> ids() throws Exception {
        Set<Long> found = new HashSet<>();
        admin.listLedgers().forEach(found::add);
        return found;
    }

    private static void holds(LedgerHandle reader, int count, int size) throws Exception {
        int next = 0;
        for (LedgerEntry entry : Collections.list(reader.readEntries(0, count - 1))) {
            same(next++, entry, size);
        }
        same(count, next);
    }

    private static void same(long wanted, LedgerEntry entry, int size) {
        same(wanted, entry.getEntryId());
        require(Arrays.equals(Writer.payload(wanted, size), entry.getEntry()), "entry " + wanted + " has other bytes");
    }

    private static void same(long wanted, long found) {
        require(wanted == found, found + " where " + wanted + " is due");
    }

    private static void require(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    private static void fails(int code, Callable<?> call) throws Exception {
        same(code, codeOf(call));
    }

    private static int codeOf(Callable<?> call) throws Exception {
        try {
            call.call();
            return BKException.Code.OK;
        } catch (BKException refused) {
            return refused.getCode();
        }
    }
}
