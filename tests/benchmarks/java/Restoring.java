import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Tells when the first store begins to be restored, and when tasks run, with the number of records restored until then. */
final class Restoring implements StateRestoreListener, KafkaStreams.StateListener {
    private final AtomicLong restored = new AtomicLong();
    private final AtomicBoolean begun = new AtomicBoolean();

    @Override
    public void onChange(final KafkaStreams.State newState, final KafkaStreams.State oldState) {
        if (newState == KafkaStreams.State.RUNNING) {
            Bench.tell("running", Map.of("restored", restored.get()));
        }
    }

    @Override
    public void onRestoreStart(final TopicPartition changelog, final String store, final long start, final long end) {
        if (begun.compareAndSet(false, true)) {
            Bench.tell("restoring", Map.of());
        }
    }

    @Override
    public void onBatchRestored(final TopicPartition changelog, final String store, final long end, final long count) {
        restored.addAndGet(count);
    }

    @Override
    public void onRestoreEnd(final TopicPartition changelog, final String store, final long count) {}
}
