package bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.BookKeeper;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.ListLedgersResult;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;

/**
 * What a request may ask for. Every command takes {@code uri}, the cluster's metadata URI, too, and those that use
 * bookies {@code protocol}, v2 (the default) or v3.
 *
 * <pre>
 * initialize                                                 {"initialized"}
 * bookies                                                    {"available", "read_only", "all"}
 * check_cookies  settings directories                        {}                 or InvalidCookieException
 * calls          first_id                                    {"passed", "failed"}    see {@link Calls}
 * auditor                                                    {"auditor"}
 * recover_bookie bookie ledger                               {}                 copies what a dead bookie had of a ledger
 * shell          words [file ids answer]                     {"exit", "output"} see {@link Shell}
 * start_auditor · start_worker  name settings                {}                 see {@link Repairs}
 * lock           name ledger                                 {}                 of an under-replicated ledger
 * stop           name                                        {}                 ends the auditor, worker or lock
 * configuration_names                                        {"names"}          strings that configuration classes define
 * disconnect                                                 {}                 forgets the client of that uri and protocol
 * create     ensemble write_quorum ack_quorum digest password [ledger]   {"ledger"}     left open
 * append     ledger sizes                                    {"last_entry", "last_confirmed", "length"}
 * close      ledger                                          {"last_entry", "length"}
 * abandon    ledger                                          {}                 never closed, as if the writer died
 * read       ledger digest password recover how [first last]
 *            {"closed", "last_confirmed", "length", "entries": [[bytes, crc32] ...], "batch_reads"}
 * explicit_lac  ledger digest password                       {"last_confirmed"}    asked over V3, even by a V2 client
 * load       what ...                                        see {@link Load}
 * metadata   ledger                                          see {@link #metadata}
 * list                                                       {"ledgers"}
 * delete     ledger                                          {}
 * </pre>
 *
 * {@code how} is single, batch or unconfirmed. Without {@code first} and {@code last}, a read is of all entries up to
 * the last confirmed one.
 */
final class Commands {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Ledger ids are unique in their cluster only. */
    private record WriterKey(String uri, long ledger) {}

    private final Map<String, BookKeeper> clients = new HashMap<>();
    private final Map<String, BookKeeper> loadClients = new HashMap<>();
    private final Map<WriterKey, Writer> writers = new HashMap<>();
    private final Repairs repairs = new Repairs();

    ObjectNode run(JsonNode request) throws Exception {
        String command = text(request, "command");
        return switch (command) {
            case "initialize" -> Operator.initialize(text(request, "uri"));
            case "bookies" -> Operator.bookies(text(request, "uri"));
            case "check_cookies" ->
                    Operator.checkCookies(
                            text(request, "uri"), request.required("settings"), request.required("directories"));
            case "calls" -> calls(request);
            case "auditor" -> Operator.auditor(text(request, "uri"));
            case "recover_bookie" ->
                    Operator.recoverBookie(text(request, "uri"), text(request, "bookie"), ledgerId(request));
            case "shell" -> shell(request);
            case "start_auditor" ->
                    repairs.startAuditor(text(request, "uri"), text(request, "name"), request.required("settings"));
            case "start_worker" ->
                    repairs.startWorker(text(request, "uri"), text(request, "name"), request.required("settings"));
            case "lock" -> repairs.lock(text(request, "uri"), text(request, "name"), ledgerId(request));
            case "stop" -> repairs.stop(text(request, "uri"), text(request, "name"));
            case "configuration_names" -> Operator.configurationNames();
            case "disconnect" -> disconnect(request);
            case "create" -> create(request);
            case "append" -> append(request);
            case "close" -> close(request);
            case "abandon" -> abandon(request);
            case "read" -> read(request);
            case "explicit_lac" -> explicitLac(request);
            case "load" -> Load.run(loadClient(request), request);
            case "metadata" -> metadata(request);
            case "list" -> list(request);
            case "delete" -> delete(request);
            default -> throw new IllegalArgumentException("no command " + command);
        };
    }

    private ObjectNode disconnect(JsonNode request) throws Exception {
        for (Map<String, BookKeeper> each : List.of(clients, loadClients)) {
            BookKeeper client = each.remove(clientKey(request));
            if (client != null) {
                client.close();
            }
        }
        return JSON.createObjectNode();
    }

    private BookKeeper loadClient(JsonNode request) throws Exception {
        BookKeeper client = loadClients.get(clientKey(request));
        if (client == null) {
            ClientConfiguration configuration = Load.clientConfiguration(text(request, "uri"), isV2(request));
            client = BookKeeper.newBuilder(configured(configuration, request)).build();
            loadClients.put(clientKey(request), client);
        }
        return client;
    }

    private BookKeeper client(JsonNode request) throws Exception {
        BookKeeper client = clients.get(clientKey(request));
        if (client == null) {
            ClientConfiguration configuration = clientConfiguration(text(request, "uri"), isV2(request));
            client = BookKeeper.newBuilder(configured(configuration, request)).build();
            clients.put(clientKey(request), client);
        }
        return client;
    }

    /** Adds the keys that a request has as {@code client_settings}. */
    private static ClientConfiguration configured(ClientConfiguration configuration, JsonNode request) {
        request.path("client_settings")
                .fields()
                .forEachRemaining(each -> configuration.setProperty(each.getKey(), each.getValue().textValue()));
        return configuration;
    }

    static ClientConfiguration clientConfiguration(String uri) {
        return clientConfiguration(uri, true);
    }

    static ClientConfiguration clientConfiguration(String uri, boolean isV2) {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        configuration.setUseV2WireProtocol(isV2);
        // With detection on, Java would not notice a digest type that the metadata states wrongly.
        configuration.setEnableDigestTypeAutodetection(false);
        return configuration;
    }

    private static ObjectNode calls(JsonNode request) throws Exception {
        try (Calls calls = new Calls(text(request, "uri"), isV2(request), request.required("first_id").longValue())) {
            return calls.run();
        }
    }

    private static ObjectNode shell(JsonNode request) throws Exception {
        JsonNode words = request.required("words");
        String[] line = new String[words.size()];
        for (int i = 0; i < line.length; i++) {
            line[i] = words.get(i).textValue();
        }
        return Shell.run(
                text(request, "uri"),
                request.path("file").asText(""),
                request.path("ids").asText("long"),
                request.path("answer").asText(""),
                line);
    }

    private ObjectNode create(JsonNode request) throws Exception {
        var builder = client(request)
                .newCreateLedgerOp()
                .withEnsembleSize(request.required("ensemble").intValue())
                .withWriteQuorumSize(request.required("write_quorum").intValue())
                .withAckQuorumSize(request.required("ack_quorum").intValue())
                .withDigestType(digest(request))
                .withPassword(password(request));
        Writer writer = request.has("ledger")
                ? Writer.of(builder.makeAdv().withLedgerId(request.get("ledger").longValue()).execute().get())
                : Writer.of(builder.execute().get());
        writers.put(new WriterKey(text(request, "uri"), writer.ledgerId()), writer);
        return JSON.createObjectNode().put("ledger", writer.ledgerId());
    }

    private ObjectNode append(JsonNode request) throws Exception {
        Writer writer = writers.get(writerKey(request));
        JsonNode sizes = request.required("sizes");
        int[] bytes = new int[sizes.size()];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = sizes.get(i).intValue();
        }
        long lastEntry = writer.append(bytes);
        return JSON.createObjectNode()
                .put("last_entry", lastEntry)
                .put("last_confirmed", writer.lastConfirmed())
                .put("length", writer.length());
    }

    private ObjectNode close(JsonNode request) throws Exception {
        Writer writer = writers.remove(writerKey(request));
        writer.close();
        return JSON.createObjectNode().put("last_entry", writer.lastConfirmed()).put("length", writer.length());
    }

    private ObjectNode abandon(JsonNode request) {
        writers.remove(writerKey(request));
        return JSON.createObjectNode();
    }

    private ObjectNode read(JsonNode request) throws Exception {
        try (ReadHandle handle = open(request, request.required("recover").booleanValue())) {
            Reader reader = new Reader(handle, text(request, "how"));
            long first = request.path("first").asLong(0);
            long last = request.path("last").asLong(handle.getLastAddConfirmed());
            ArrayNode entries = JSON.createArrayNode();
            reader.read(first, last, (size, crc) -> entries.addArray().add(size).add(crc));
            ObjectNode answer = JSON.createObjectNode()
                    .put("closed", handle.isClosed())
                    .put("last_confirmed", handle.getLastAddConfirmed())
                    .put("length", handle.getLength())
                    .put("batch_reads", reader.batchReads());
            answer.set("entries", entries);
            return answer;
        }
    }

    private ReadHandle open(JsonNode request, boolean recover) throws Exception {
        return client(request)
                .newOpenLedgerOp()
                .withLedgerId(ledgerId(request))
                .withDigestType(digest(request))
                .withPassword(password(request))
                .withRecovery(recover)
                .execute()
                .get();
    }

    private ObjectNode explicitLac(JsonNode request) throws Exception {
        try (ReadHandle handle = open(request, false)) {
            return JSON.createObjectNode().put("last_confirmed", ((LedgerHandle) handle).readExplicitLastConfirmed());
        }
    }

    /** The metadata under the names that {@code bkspark ledger show} uses. */
    private ObjectNode metadata(JsonNode request) throws Exception {
        LedgerMetadata metadata =
                client(request).getLedgerMetadata(ledgerId(request)).get();
        ObjectNode answer = JSON.createObjectNode()
                .put("ledger", metadata.getLedgerId())
                .put("state", metadata.getState().name())
                .put("ensemble_size", metadata.getEnsembleSize())
                .put("write_quorum", metadata.getWriteQuorumSize())
                .put("ack_quorum", metadata.getAckQuorumSize())
                .put("digest", metadata.getDigestType().name().toLowerCase())
                .put("password", new String(metadata.getPassword(), StandardCharsets.UTF_8))
                .put("last_entry", metadata.getLastEntryId())
                .put("length", metadata.getLength())
                .put("format_version", metadata.getMetadataFormatVersion());
        answer.set("fragments", fragments(metadata.getAllEnsembles()));
        ObjectNode custom = answer.putObject("custom_metadata");
        metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, new String(value, StandardCharsets.UTF_8)));
        return answer;
    }

    private static ArrayNode fragments(NavigableMap<Long, ? extends List<BookieId>> ensembles) {
        ArrayNode fragments = JSON.createArrayNode();
        ensembles.forEach((firstEntry, bookies) -> {
            ArrayNode ids =
                    fragments.addObject().put("first_entry", firstEntry).putArray("bookies");
            bookies.forEach(bookie -> ids.add(bookie.getId()));
        });
        return fragments;
    }

    private ObjectNode list(JsonNode request) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode ids = answer.putArray("ledgers");
        try (ListLedgersResult result = client(request).newListLedgersOp().execute().get()) {
            result.toIterable().forEach(ids::add);
        }
        return answer;
    }

    private ObjectNode delete(JsonNode request) throws Exception {
        client(request).newDeleteLedgerOp().withLedgerId(ledgerId(request)).execute().get();
        return JSON.createObjectNode();
    }

    private static String text(JsonNode request, String name) {
        return request.required(name).textValue();
    }

    private static boolean isV2(JsonNode request) {
        return request.path("protocol").asText("v2").equals("v2");
    }

    private static String clientKey(JsonNode request) {
        return (isV2(request) ? "v2 " : "v3 ") + text(request, "uri") + request.path("client_settings");
    }

    private static WriterKey writerKey(JsonNode request) {
        return new WriterKey(text(request, "uri"), ledgerId(request));
    }

    private static long ledgerId(JsonNode request) {
        return request.required("ledger").longValue();
    }

    private static DigestType digest(JsonNode request) {
        return DigestType.valueOf(text(request, "digest").toUpperCase());
    }

    private static byte[] password(JsonNode request) {
        return text(request, "password").getBytes(StandardCharsets.UTF_8);
    }
}
