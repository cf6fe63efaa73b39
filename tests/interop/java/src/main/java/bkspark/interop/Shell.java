package bkspark.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/** Apache's {@code bookkeeper shell}, without a new JVM for every command. */
final class Shell {
    private Shell() {}

    /** Runs one command line; answers {"exit", "output"}, what the command printed on stdout. */
    static ObjectNode run(String uri, String[] words) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        configuration.setMetadataServiceUri(uri);
        BookieShell shell = new BookieShell(LedgerIdFormatter.LONG_LEDGERID_FORMATTER, EntryFormatter.STRING_FORMATTER);
        shell.setConf(configuration);
        PrintStream before = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        try {
            return new ObjectMapper()
                    .createObjectNode()
                    .put("exit", shell.run(words))
                    .put("output", printed.toString());
        } finally {
            System.setOut(before);
        }
    }
}
