import static org.apache.kafka.streams.kstream.Suppressed.BufferConfig.maxRecords;
import static org.apache.kafka.streams.kstream.Suppressed.BufferConfig.unbounded;
import static org.apache.kafka.streams.kstream.Suppressed.untilTimeLimit;
import static org.apache.kafka.streams.kstream.Suppressed.untilWindowCloses;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/** Session, sliding and unlimited windows, emission on close, suppression. */
final class Windows {

    private Windows() { }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        hopping(twins);
        sessions(twins);
        sliding(twins);
        emitOnClose(twins);
        suppress(twins);
        return twins;
    }

    private static Duration ms(long count) {
        return Duration.ofMillis(count);
    }

    private static Grouped<String, String> byText() {
        return Grouped.with(Serdes.String(), Serdes.String());
    }

    private static Consumed<String, String> texts() {
        return Consumed.with(Serdes.String(), Serdes.String());
    }

    private static <V> Materialized<String, V, WindowStore<Bytes, byte[]>> windows(String name) {
        return Materialized.<String, V, WindowStore<Bytes, byte[]>>as(name).withRetention(Duration.ofMinutes(10));
    }

    private static <V> Materialized<String, V, SessionStore<Bytes, byte[]>> sessions(String name) {
        return Materialized.<String, V, SessionStore<Bytes, byte[]>>as(name).withRetention(Duration.ofMinutes(10));
    }

    private static void hopping(Map<String, Oracle.Twin> twins) {
        twins.put("hopping_group_by_count", (builder, said) -> Streams.strings(builder)
                .groupBy((k, v) -> Streams.first(v), byText())
                .windowedBy(TimeWindows.ofSizeAndGrace(ms(90), ms(500)).advanceBy(ms(30)))
                .count(Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream().to("out"));
        twins.put("unlimited_count", (builder, said) -> Streams.strings(builder)
                .groupByKey()
                .windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(1_050)))
                .count(Materialized.as("ever"))
                .toStream((k, v) -> Streams.flat(k)).to("out"));
    }

    private static void sessions(Map<String, Oracle.Twin> twins) {
        twins.put("session_count", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(37)))
                .count()
                .toStream().to("out"));
        twins.put("session_count_with_serdes", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(30), ms(60)))
                .count(Materialized.with(Serdes.String(), Serdes.Long()))
                .toStream().to("out"));
        twins.put("session_reduce", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(50), ms(100)))
                .reduce((left, right) -> left + right)
                .toStream().to("out"));
        twins.put("session_aggregate", (builder, said) -> Streams.strings(builder)
                .groupByKey(Grouped.with("ignored", Serdes.String(), Serdes.String()))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(20), ms(200)))
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + Streams.first(v),
                        (k, left, right) -> left + "|" + right, Named.as("sessions"), sessions("visits"))
                .toStream(Named.as("stream")).to("out"));
        twins.put("session_group_by_aggregate", (builder, said) -> Streams.strings(builder)
                .groupBy((k, v) -> Streams.first(v), Grouped.with("grouped", Serdes.String(), Serdes.String()))
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(25), ms(1_000)))
                .aggregate(() -> ".", (k, v, aggregate) -> aggregate.length() > 4 ? null : aggregate + v,
                        (k, left, right) -> left + "|" + right,
                        Materialized.<String, String, SessionStore<Bytes, byte[]>>with(Serdes.String(), Serdes.String())
                                .withRetention(Duration.ofMinutes(10)))
                .toStream().to("out"));
    }

    private static void sliding(Map<String, Oracle.Twin> twins) {
        twins.put("sliding_count", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(ms(50)))
                .count()
                .toStream().to("out"));
        twins.put("sliding_aggregate", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(60), ms(80)))
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + Streams.first(v), Named.as("slides"),
                        Materialized.as("slid"))
                .toStream().to("out"));
        twins.put("sliding_group_by_reduce", (builder, said) -> Streams.strings(builder)
                .groupBy((k, v) -> Streams.first(v), byText())
                .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(30), ms(3_000)))
                .reduce((left, right) -> left + right)
                .toStream().to("out"));
    }

    private static void emitOnClose(Map<String, Oracle.Twin> twins) {
        twins.put("emit_on_close_tumbling", (builder, said) -> Streams.strings(builder)
                .groupByKey()
                .windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(windows("counts"))
                .toStream().to("out"));
        twins.put("emit_on_close_hopping", (builder, said) -> Streams.strings(builder)
                .groupBy((k, v) -> Streams.first(v), byText())
                .windowedBy(TimeWindows.ofSizeWithNoGrace(ms(100)).advanceBy(ms(40)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .aggregate(() -> "", (k, v, aggregate) -> aggregate + Streams.first(v), windows("texts"))
                .toStream().to("out"));
        twins.put("emit_on_close_sliding", (builder, said) -> Streams.strings(builder)
                .groupByKey()
                .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(ms(50), ms(30)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(windows("counts"))
                .toStream().to("out"));
        twins.put("emit_on_close_session", (builder, said) -> Streams.strings(builder)
                .groupByKey()
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(60)))
                .emitStrategy(EmitStrategy.onWindowClose())
                .count(sessions("counts"))
                .toStream().to("out"));
    }

    private static void suppress(Map<String, Oracle.Twin> twins) {
        twins.put("suppress_until_window_closes", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(50)))
                .count()
                .suppress(untilWindowCloses(unbounded()))
                .toStream().to("out"));
        twins.put("suppress_named", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(ms(100), ms(20)).advanceBy(ms(50)))
                .reduce((left, right) -> left + right, Materialized.as("texts"))
                .suppress(untilWindowCloses(unbounded()).withName("final"))
                .toStream().to("out"));
        twins.put("suppress_sessions", (builder, said) -> Streams.strings(builder)
                .groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(ms(40), ms(30)))
                .count(Materialized.as("visits"))
                .suppress(untilWindowCloses(unbounded().withLoggingDisabled()))
                .toStream().to("out"));
        twins.put("suppress_table_until_time_limit", (builder, said) -> builder.table("in", texts())
                .suppress(untilTimeLimit(ms(60), unbounded()))
                .toStream().to("out"));
        twins.put("suppress_counts_until_full", (builder, said) -> Streams.strings(builder)
                .groupByKey().count()
                .suppress(untilTimeLimit(ms(500), maxRecords(2).emitEarlyWhenFull()))
                .toStream().to("out"));
    }
}
