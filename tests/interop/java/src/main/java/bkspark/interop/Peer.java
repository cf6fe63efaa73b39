package bkspark.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.bookkeeper.client.api.BKException;

/**
 * Apache BookKeeper's own client, driven by lines of JSON.
 *
 * <p>One request object per line on stdin, one answer object per line on stdout, in order. A request names its
 * {@code command} and that command's arguments ({@link Commands}). An answer is the command's result, or
 * {@code {"error": NAME, "code": N, "message": TEXT}}; {@code code} is BKException's, or 0 for any other failure.
 * The end of stdin ends the program. Writers that are open then are left as a client that died leaves them.
 */
public final class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Peer() {}

    public static void main(String[] arguments) throws IOException {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Commands commands = new Commands();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            byte[] answer = JSON.writeValueAsBytes(answer(commands, JSON.readTree(line)));
            answers.write(answer, 0, answer.length);
            answers.write('\n');
            answers.flush();
        }
        // Not exit(): its hooks would close what a test wants left open.
        Runtime.getRuntime().halt(0);
    }

    private static ObjectNode answer(Commands commands, JsonNode request) {
        try {
            return commands.run(request);
        } catch (Exception failure) {
            return describe(rootOf(failure));
        }
    }

    private static Throwable rootOf(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
                && cause.getCause() != null) {
            cause = cause.getCause();
        }
        return cause;
    }

    private static ObjectNode describe(Throwable failure) {
        if (!(failure instanceof BKException)) {
            failure.printStackTrace();
        }
        int code = failure instanceof BKException known ? known.getCode() : 0;
        return JSON.createObjectNode()
                .put("error", failure.getClass().getSimpleName())
                .put("code", code)
                .put("message", String.valueOf(failure.getMessage()));
    }
}
