package bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.net.URI;
import java.util.HashMap;
import java.util.Map;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.replication.AuditorElector;
import org.apache.bookkeeper.replication.ReplicationWorker;
import org.apache.bookkeeper.stats.NullStatsLogger;

/**
 * Apache's autorecovery, in parts: its auditor without its worker, its worker without its auditor, and a lock as its
 * worker takes it. Each part has a metadata session of its own, as in a process of its own.
 */
final class Repairs {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, AutoCloseable> running = new HashMap<>();

    /** Starts the candidate for auditor that calls itself {@code name}. */
    ObjectNode startAuditor(String uri, String name, JsonNode settings) throws Exception {
        AuditorElector elector = new AuditorElector(name, configuration(uri, settings));
        elector.start();
        running.put(uri + " " + name, elector::shutdown);
        return JSON.createObjectNode();
    }

    /** Starts a replication worker; {@code name} is for {@link #stop}. */
    ObjectNode startWorker(String uri, String name, JsonNode settings) throws Exception {
        ReplicationWorker worker = new ReplicationWorker(configuration(uri, settings));
        worker.start();
        running.put(uri + " " + name, worker::shutdown);
        return JSON.createObjectNode();
    }

    /** Takes the lock of an under-replicated ledger, until {@link #stop}. */
    ObjectNode lock(String uri, String name, long ledger) throws Exception {
        ServerConfiguration configuration = configuration(uri, JSON.createObjectNode());
        MetadataBookieDriver driver = MetadataDrivers.getBookieDriver(URI.create(uri));
        driver.initialize(configuration, NullStatsLogger.INSTANCE);
        LedgerUnderreplicationManager manager =
                driver.getLedgerManagerFactory().newLedgerUnderreplicationManager();
        try {
            manager.acquireUnderreplicatedLedger(ledger);
        } catch (Exception refused) {
            driver.close();
            throw refused;
        }
        running.put(uri + " " + name, () -> {
            manager.releaseUnderreplicatedLedger(ledger);
            driver.close();
        });
        return JSON.createObjectNode();
    }

    /** Ends what was started under a name. */
    ObjectNode stop(String uri, String name) throws Exception {
        AutoCloseable part = running.remove(uri + " " + name);
        if (part != null) {
            part.close();
        }
        return JSON.createObjectNode();
    }

    private static ServerConfiguration configuration(String uri, JsonNode settings) {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(uri);
        settings.fields().forEachRemaining(each -> configuration.setProperty(each.getKey(), each.getValue().asText()));
        return configuration;
    }
}
