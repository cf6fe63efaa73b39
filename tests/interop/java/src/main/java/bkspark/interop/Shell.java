package bkspark.interop;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.bookkeeper.bookie.BookieShell;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.util.EntryFormatter;
import org.apache.bookkeeper.util.LedgerIdFormatter;

/** Apache's {@code bookkeeper shell}, without a new JVM for every command. */
final class Shell {
    private static final int FAILED = -1;

    private Shell() {}

    /**
     * Runs one command line; answers {"exit", "output"}, what the command printed on stdout.
     *
     * <p>{@code file}: a bk_server.conf, or ""; {@code ids}: how ledgers are named; {@code answer}: what a person types at each question.
     * An exception that leaves the shell is its exit code -1, as in its {@code main}.
     */
    static ObjectNode run(String uri, String file, String ids, String answer, String[] words) throws Exception {
        ServerConfiguration configuration = new ServerConfiguration();
        if (file.isEmpty()) {
            configuration.setMetadataServiceUri(uri);
        } else {
            configuration.loadConf(new File(file).toURI().toURL());
        }
        PrintStream before = System.out;
        InputStream typed = System.in;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true));
        System.setIn(new Answers(answer.getBytes(StandardCharsets.UTF_8)));
        int exit = FAILED;
        try {
            // Some commands keep the stdout that there is when they are made.
            BookieShell shell = new BookieShell(
                    LedgerIdFormatter.newLedgerIdFormatter(ids, configuration), EntryFormatter.STRING_FORMATTER);
            shell.setConf(configuration);
            exit = shell.run(words);
        } catch (Exception failure) {
            System.out.println(failure);
        } finally {
            System.setOut(before);
            System.setIn(typed);
        }
        return new ObjectMapper().createObjectNode().put("exit", exit).put("output", printed.toString());
    }

    /** The same line again and again: a shell may ask several times. */
    private static final class Answers extends InputStream {
        private final byte[] line;
        private int at = 0;

        Answers(byte[] line) {
            this.line = line;
        }

        @Override
        public int read() throws IOException {
            if (line.length == 0) {
                // The end of input would be asked for an answer for ever.
                throw new IOException("nobody answers");
            }
            return line[at++ % line.length];
        }
    }
}
