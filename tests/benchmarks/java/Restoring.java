import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Tells when tasks are being taken over, and when they run, with the number of records restored until then. */
final class Restoring implements StateRestoreListener, KafkaStreams.StateListener {
    private final AtomicLong restored = new AtomicLong();

    @Override
    public void onChange(final KafkaStreams.State newState, final KafkaStreams.State oldState) {
        if (newState == KafkaStreams.State.REBALANCING) {
            Bench.tell("rebalancing", Map.of());
        } else if (newState == KafkaStreams.State.RUNNING) {
            Bench.tell("running", Map.of("restored", restored.get()));
        }
    }

    @Override
    public void onRestoreStart(final TopicPartition changelog, final String store, final long start, final long end) {}

    @Override
    public void onBatchRestored(final TopicPartition changelog, final String store, final long end, final long count) {
        restored.addAndGet(count);
    }

    @Override
    public void onRestoreEnd(final TopicPartition changelog, final String store, final long count) {}
}
