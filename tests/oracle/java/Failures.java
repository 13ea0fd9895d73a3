import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.ErrorHandlerContext;
import org.apache.kafka.streams.errors.LogAndContinueExceptionHandler;
import org.apache.kafka.streams.errors.LogAndContinueProcessingExceptionHandler;
import org.apache.kafka.streams.errors.ProductionExceptionHandler;
import org.apache.kafka.streams.errors.internals.ExceptionHandlerUtils;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.LogAndSkipOnInvalidTimestamp;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.UsePartitionTimeOnInvalidTimestamp;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;

/** Records that cannot be read, processed or written, with handlers that go on and a dead letter topic. */
final class Failures {

    private Failures() { }

    /** As `continue` for what cannot be written; Kafka Streams has none ready-made. */
    public static final class SkipUnwritable implements ProductionExceptionHandler {
        private String topic;

        @Override
        public Response handleError(
                ErrorHandlerContext context, ProducerRecord<byte[], byte[]> record, Exception exception) {
            return Response.fail();
        }

        @Override
        @SuppressWarnings("rawtypes")
        public Response handleSerializationError(ErrorHandlerContext context, ProducerRecord record,
                Exception exception, SerializationExceptionOrigin origin) {
            return Response.resume(ExceptionHandlerUtils.maybeBuildDeadLetterQueueRecords(
                    topic, context.sourceRawKey(), context.sourceRawValue(), context, exception));
        }

        @Override
        public void configure(Map<String, ?> configs) {
            topic = String.valueOf(configs.get(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG));
        }
    }

    static void configure(Properties config) {
        config.put(StreamsConfig.DESERIALIZATION_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueExceptionHandler.class);
        config.put(StreamsConfig.PROCESSING_EXCEPTION_HANDLER_CLASS_CONFIG, LogAndContinueProcessingExceptionHandler.class);
        config.put(StreamsConfig.PRODUCTION_EXCEPTION_HANDLER_CLASS_CONFIG, SkipUnwritable.class);
        config.put(StreamsConfig.ERRORS_DEAD_LETTER_QUEUE_TOPIC_NAME_CONFIG, "letters");
    }

    static Map<String, Oracle.Twin> twins() {
        Map<String, Oracle.Twin> twins = new LinkedHashMap<>();
        twins.put("processing_fails", (builder, said) -> {
            KStream<String, String> in = Streams.strings(builder).mapValues(v -> v + "!");
            in.mapValues(v -> refuse(v, "b")).to("out");
            in.mapValues(v -> v + "?").to("second");
        });
        twins.put("processing_fails_after_a_repartition", (builder, said) -> Streams.strings(builder)
                .selectKey((k, v) -> refuse(v, "c"))
                .groupByKey().count(Materialized.as("counts")).toStream()
                .mapValues(v -> 6 / (v - 2))
                .to("out", Produced.with(Serdes.String(), Serdes.Long())));
        twins.put("processing_fails_behind_a_cache", (builder, said) -> Streams.strings(builder)
                .groupByKey().count(Materialized.as("counts")).toStream()
                .mapValues(v -> 6 / (v - 2))
                .to("out", Produced.with(Serdes.String(), Serdes.Long())));
        twins.put("a_processor_fails_at_other_times", (builder, said) -> Streams.strings(builder)
                .process(Moving::new).mapValues(v -> refuse(v, "b")).to("out"));
        twins.put("a_punctuation_fails", (builder, said) -> Streams.strings(builder)
                .process(Punctuated::new).mapValues(v -> refuse(v, "bad")).to("out"));
        twins.put("decoding_fails", (builder, said) -> builder.stream("in", Consumed.with(Serdes.String(), Serdes.Integer()))
                .mapValues(v -> String.valueOf(v)).groupByKey().count(Materialized.as("counts")).toStream()
                .to("out", Produced.with(Serdes.String(), Serdes.Long())));
        twins.put("decoding_fails_in_one_of_two", (builder, said) -> {
            KStream<String, String> numbers = builder.stream("in", Consumed.with(Serdes.String(), Serdes.Integer()))
                    .mapValues(v -> String.valueOf(v));
            numbers.merge(builder.stream("other")).to("out");
        });
        twins.put("writing_fails", (builder, said) -> Streams.strings(builder)
                .mapValues(v -> v == null ? "none" : v).to("out", Produced.with(Serdes.String(), picky())));
        twins.put("negative_times_are_skipped", (builder, said) -> builder.stream("in",
                        Consumed.with(Serdes.String(), Serdes.String())
                                .withTimestampExtractor(invalid(new LogAndSkipOnInvalidTimestamp())))
                .groupByKey().count(Materialized.as("counts")).toStream().mapValues(v -> String.valueOf(v)).to("out"));
        twins.put("negative_times_become_partition_time", (builder, said) -> builder.stream("in",
                        Consumed.with(Serdes.String(), Serdes.String())
                                .withTimestampExtractor(invalid(new UsePartitionTimeOnInvalidTimestamp())))
                .groupByKey().count(Materialized.as("counts")).toStream().mapValues(v -> String.valueOf(v)).to("out"));
        return twins;
    }

    private static String refuse(String value, String start) {
        if (value != null && value.startsWith(start)) {
            throw new IllegalArgumentException("cannot take " + value);
        }
        return value;
    }

    private static Serde<String> picky() {
        return Serdes.serdeFrom(
                (topic, value) -> refuse(value, "b").getBytes(StandardCharsets.UTF_8),
                (topic, data) -> new String(data, StandardCharsets.UTF_8));
    }

    /** Values that begin with a or b have no valid time, once the partition has one. */
    private static TimestampExtractor invalid(TimestampExtractor extractor) {
        return (record, partitionTime) -> {
            String value = (String) record.value();
            boolean isInvalid = value != null && value.compareTo("c") < 0 && partitionTime >= 0;
            return !isInvalid ? record.timestamp() : extractor.extract(new ConsumerRecord<>(
                    record.topic(), record.partition(), record.offset(), -1L, record.timestampType(), 0, 0,
                    record.key(), record.value(), record.headers(), record.leaderEpoch()), partitionTime);
        };
    }

    /** Forwards at another time and with other headers. */
    static final class Moving implements Processor<String, String, String, String> {
        private ProcessorContext<String, String> context;

        @Override
        public void init(ProcessorContext<String, String> context) {
            this.context = context;
        }

        @Override
        public void process(Record<String, String> record) {
            refuse(record.value(), "d");
            Record<String, String> moved = record.withTimestamp(record.timestamp() + 3);
            moved.headers().add("moved", new byte[] {49});
            context.forward(moved);
        }
    }

    /** Fails in every other punctuation, and forwards what fails below in the others. */
    static final class Punctuated implements Processor<String, String, String, String> {
        private int calls;

        @Override
        public void init(ProcessorContext<String, String> context) {
            context.schedule(Duration.ofMillis(50), PunctuationType.STREAM_TIME, time -> {
                calls++;
                if (calls % 2 == 0) {
                    refuse("punctuation", "p");
                }
                context.forward(new Record<>("p", calls % 3 == 0 ? "bad" : "good", time));
            });
        }

        @Override
        public void process(Record<String, String> record) { }
    }
}
