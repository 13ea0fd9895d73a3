import com.fasterxml.jackson.annotation.JsonPropertyOrder;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;

/** The topologies of topologies.py, one stream thread, until SIGTERM. Settings not named here are Kafka Streams' own. */
public final class Bench {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    public static final class View {
        public long id;
        public String user;
        public String page;
        public int millis;
        public boolean ok;
    }

    @JsonPropertyOrder({"page", "seconds", "user"})
    public record Slow(String page, int seconds, String user) {}

    private static final String USAGE =
        "Bench <row> <bootstrap servers> <application id> <input> <output> <guarantee> <commit interval ms> <state dir>";

    public static void main(final String[] args) throws InterruptedException {
        if (args.length != 8) {
            throw new IllegalArgumentException(USAGE);
        }
        final Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[1]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, args[2]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[5]);
        settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, args[6]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, args[7]);
        settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 1);
        settings.put("auto.offset.reset", "earliest");

        final StreamsBuilder builder = new StreamsBuilder();
        final KStream<String, View> views = builder.stream(args[3], Consumed.with(Serdes.String(), json(View.class)));
        switch (args[0]) {
            case "windowed-count" -> windowedCount(views, args[4]);
            case "stateless" -> stateless(views, args[4]);
            default -> throw new IllegalArgumentException(args[0]);
        }
        final KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        final CountDownLatch stopped = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(30));
            stopped.countDown();
        }));
        streams.start();
        stopped.await();
    }

    private static void windowedCount(final KStream<String, View> views, final String output) {
        final Duration minute = Duration.ofMinutes(1);
        views.groupByKey(Grouped.with(Serdes.String(), json(View.class)))
            .windowedBy(TimeWindows.ofSizeWithNoGrace(minute))
            .count(Materialized.as("counts"))
            .toStream()
            .to(output, Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, minute.toMillis()), Serdes.Long()));
    }

    private static void stateless(final KStream<String, View> views, final String output) {
        views.filter((user, view) -> view.ok)
            .mapValues(view -> new Slow(view.page, view.millis / 1000, view.user))
            .to(output, Produced.with(Serdes.String(), json(Slow.class)));
    }

    private static <T> Serde<T> json(final Class<T> type) {
        final ObjectReader reader = MAPPER.readerFor(type);
        final ObjectWriter writer = MAPPER.writerFor(type);
        return Serdes.serdeFrom((topic, value) -> {
            try {
                return value == null ? null : writer.writeValueAsBytes(value);
            } catch (final IOException error) {
                throw new UncheckedIOException(error);
            }
        }, (topic, data) -> {
            try {
                return data == null ? null : reader.readValue(data);
            } catch (final IOException error) {
                throw new UncheckedIOException(error);
            }
        });
    }
}
