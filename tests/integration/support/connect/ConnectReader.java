// Kafka messages as a sink connector of Kafka Connect gets them: read by JsonConverter, with schemas, and unwrapped by
// Debezium's ExtractNewRecordState. Arguments: the transform's options as name=value. Input: how many messages, then of
// each the length and the bytes of its key, and of its value, numbers in four bytes; length -1 is Kafka's null. Output:
// a line for each, {"key": ..., "value": ...}, {"dropped": true} or {"refused": why}.

import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

public final class ConnectReader {
  private static final String TOPIC = "topic";

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (String argument : arguments) {
      String[] sides = argument.split("=", 2);
      options.put(sides[0], sides[1]);
    }
    try (JsonConverter keys = converter(true, true);
        JsonConverter values = converter(true, false);
        JsonConverter plain = converter(false, false);
        ExtractNewRecordState<SinkRecord> unwrap = new ExtractNewRecordState<>()) {
      unwrap.configure(options);
      DataInputStream messages = new DataInputStream(new BufferedInputStream(System.in));
      PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
      int count = messages.readInt();
      for (int number = 0; number < count; number++) {
        byte[] key = side(messages);
        byte[] value = side(messages);
        answers.println(answer(keys, values, plain, unwrap, key, value, number));
      }
      answers.flush();
    }
  }

  private static JsonConverter converter(boolean withSchemas, boolean ofKeys) {
    JsonConverter converter = new JsonConverter();
    converter.configure(
        Map.of("schemas.enable", withSchemas, "decimal.format", "NUMERIC"), ofKeys);
    return converter;
  }

  private static byte[] side(DataInputStream messages) throws IOException {
    int length = messages.readInt();
    if (length < 0) {
      return null;
    }
    byte[] side = new byte[length];
    messages.readFully(side);
    return side;
  }

  private static String answer(
      JsonConverter keys,
      JsonConverter values,
      JsonConverter plain,
      ExtractNewRecordState<SinkRecord> unwrap,
      byte[] key,
      byte[] value,
      int offset) {
    try {
      SchemaAndValue keyRead = keys.toConnectData(TOPIC, key);
      SchemaAndValue valueRead = values.toConnectData(TOPIC, value);
      SinkRecord record =
          new SinkRecord(
              TOPIC, 0,
              keyRead.schema(), keyRead.value(),
              valueRead.schema(), valueRead.value(),
              offset, 0L, TimestampType.CREATE_TIME);
      SinkRecord unwrapped = unwrap.apply(record);
      if (unwrapped == null) {
        return "{\"dropped\":true}";
      }
      return "{\"key\":" + json(plain, unwrapped.keySchema(), unwrapped.key())
          + ",\"value\":" + json(plain, unwrapped.valueSchema(), unwrapped.value()) + "}";
    } catch (RuntimeException refusal) {
      String why = root(refusal).toString().replace("\\", "\\\\").replace("\"", "\\\"");
      return "{\"refused\":\"" + why.replaceAll("\\p{Cntrl}", " ") + "\"}";
    }
  }

  private static String json(JsonConverter plain, Schema schema, Object value) {
    byte[] text = plain.fromConnectData(TOPIC, schema, value);
    return text == null ? "null" : new String(text, StandardCharsets.UTF_8);
  }

  private static Throwable root(Throwable failure) {
    return failure.getCause() == null ? failure : root(failure.getCause());
  }
}
