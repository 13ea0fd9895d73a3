import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.Executors;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** Point queries, as queried.py answers them: at /stores/sums/KEY, and in this process whenever a line asks for it. */
final class Queries {
    static final String STORE = "sums";

    private Queries() {}

    /** Begins if BENCH_SERVER is set: tells the port; then for each "seconds limit keys" on standard input the latencies in us. */
    static void serve(final KafkaStreams streams) throws IOException {
        if (System.getenv("BENCH_SERVER") == null) {
            return;
        }
        final HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        server.setExecutor(Executors.newFixedThreadPool(4));
        server.createContext("/stores/" + STORE + "/", exchange -> {
            final String key = exchange.getRequestURI().getPath().substring(("/stores/" + STORE + "/").length());
            final Long value = lookUp(streams, key);
            final byte[] body = ("{\"key\":\"" + key + "\",\"value\":" + value + "}").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(value == null ? 404 : 200, body.length);
            exchange.getResponseBody().write(body);
            exchange.close();
        });
        server.start();
        Bench.tell("answers", Map.of("port", server.getAddress().getPort()));
        final Thread asking = new Thread(() -> measure(streams));
        asking.setDaemon(true);
        asking.start();
    }

    private static void measure(final KafkaStreams streams) {
        final Random random = new Random(1);
        final Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNext()) {
            final long end = System.nanoTime() + (long) (lines.nextDouble() * 1e9);
            final int limit = lines.nextInt();
            final int keys = lines.nextInt();
            final List<Long> micros = new ArrayList<>();
            while (micros.size() < limit && System.nanoTime() < end) {
                final String key = String.format("user-%06d", random.nextInt(keys));
                final long started = System.nanoTime();
                lookUp(streams, key);
                micros.add((System.nanoTime() - started) / 1000);
            }
            Bench.tell("asked", Map.of("micros", micros));
        }
    }

    private static Long lookUp(final KafkaStreams streams, final String key) {
        try {
            final ReadOnlyKeyValueStore<String, Long> store =
                streams.store(StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
            return store.get(key);
        } catch (final InvalidStateStoreException notYet) {
            return null;
        }
    }
}
