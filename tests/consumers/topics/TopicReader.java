// A topic as a plain consumer reads it, to its end. Arguments: brokers, topic. Output: a line for each message: its
// partition, and the one where Kafka's own producer would put its key.

import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class TopicReader {
  public static void main(String[] arguments) {
    ByteArrayDeserializer bytes = new ByteArrayDeserializer();
    Map<String, Object> settings =
        Map.of("bootstrap.servers", arguments[0], "isolation.level", "read_committed");
    try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
      List<TopicPartition> partitions =
          consumer.partitionsFor(arguments[1]).stream()
              .map(each -> new TopicPartition(each.topic(), each.partition()))
              .toList();
      consumer.assign(partitions);
      consumer.seekToBeginning(partitions);
      Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
      while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
        for (ConsumerRecord<byte[], byte[]> message : consumer.poll(Duration.ofSeconds(1))) {
          int theirs = BuiltInPartitioner.partitionForKey(message.key(), partitions.size());
          System.out.println(message.partition() + " " + theirs);
        }
      }
    }
  }
}
