package bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.apache.bookkeeper.bookie.BookieException;
import org.apache.bookkeeper.bookie.LegacyCookieValidation;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.conf.AbstractConfiguration;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.net.BookieId;

/** What Apache's operator tools and bookies do with a cluster's metadata. */
final class Operator {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Operator() {}

    /** Makes the layout of a new cluster. */
    static ObjectNode initialize(String uri) throws Exception {
        return JSON.createObjectNode().put("initialized", BookKeeperAdmin.initNewCluster(configuration(uri)));
    }

    /** Lists the registered bookies, and all that ever left a cookie. */
    static ObjectNode bookies(String uri) throws Exception {
        ObjectNode answer = JSON.createObjectNode();
        try (BookKeeperAdmin admin = new BookKeeperAdmin(Commands.clientConfiguration(uri))) {
            answer.set("available", ids(admin.getAvailableBookies()));
            answer.set("read_only", ids(admin.getReadOnlyBookies()));
            answer.set("all", ids(admin.getAllBookies()));
        }
        return answer;
    }

    /** Copies what a bookie that is gone had of one ledger to another bookie, and names that in the metadata. */
    static ObjectNode recoverBookie(String uri, String bookie, long ledger) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(Commands.clientConfiguration(uri, false))) {
            admin.recoverBookieData(ledger, Set.of(BookieId.parse(bookie)), false, false);
        }
        return JSON.createObjectNode();
    }

    /** Says who audits. */
    static ObjectNode auditor(String uri) throws Exception {
        try (BookKeeperAdmin admin = new BookKeeperAdmin(Commands.clientConfiguration(uri))) {
            return JSON.createObjectNode().put("auditor", admin.getCurrentAuditor().getId());
        }
    }

    private static ArrayNode ids(Collection<BookieId> bookies) {
        ArrayNode ids = JSON.createArrayNode();
        bookies.stream().map(BookieId::getId).sorted().forEach(ids::add);
        return ids;
    }

    /**
     * Checks the cookies of a bookie's directories against the one in the metadata, as an Apache bookie with these
     * {@code settings} would before it starts on them.
     */
    static ObjectNode checkCookies(String uri, JsonNode settings, JsonNode directories) throws Exception {
        ServerConfiguration configuration = configuration(uri);
        settings.fields().forEachRemaining(each -> configuration.setProperty(each.getKey(), each.getValue().asText()));
        List<File> folders = new ArrayList<>();
        directories.forEach(directory -> folders.add(new File(directory.asText())));
        Optional<BookieException> refused = MetadataDrivers.runFunctionWithRegistrationManager(configuration, manager -> {
            try {
                new LegacyCookieValidation(configuration, manager).checkCookies(folders);
                return Optional.<BookieException>empty();
            } catch (BookieException reason) {
                return Optional.of(reason);
            }
        });
        if (refused.isPresent()) {
            throw refused.get();
        }
        return JSON.createObjectNode();
    }

    /** Lists the string constants of the classes that read a bookie's file: its keys, and a few other words. */
    static ObjectNode configurationNames() throws IllegalAccessException {
        ArrayNode names = JSON.createArrayNode();
        for (Class<?> type : List.of(AbstractConfiguration.class, ServerConfiguration.class, ClientConfiguration.class)) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == String.class && Modifier.isStatic(field.getModifiers())) {
                    field.setAccessible(true);
                    names.add((String) field.get(null));
                }
            }
        }
        ObjectNode answer = JSON.createObjectNode();
        answer.set("names", names);
        return answer;
    }

    private static ServerConfiguration configuration(String uri) {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(uri);
        return configuration;
    }
}
