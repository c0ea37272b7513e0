// Values of Kafka messages as a Flink table reads them. Arguments: a format, the table's row type, and the format's
// options as name=value. Input: how many messages, then the length and the bytes of each, numbers in four bytes;
// length -1 is Kafka's null. Output: a line for each, {"changes": [[kind, row], ...]} or {"refused": why}.

import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.serialization.DeserializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.JsonFormatOptions.MapNullKeyMode;
import org.apache.flink.formats.json.RowDataToJsonConverters;
import org.apache.flink.formats.json.RowDataToJsonConverters.RowDataToJsonConverter;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.table.connector.format.DecodingFormat;
import org.apache.flink.table.connector.source.DynamicTableSource;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.factories.DeserializationFormatFactory;
import org.apache.flink.table.factories.FactoryUtil;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.table.types.utils.TypeConversions;
import org.apache.flink.util.Collector;

public final class FlinkReader {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    Map<String, String> options = new HashMap<>();
    for (int number = 2; number < arguments.length; number++) {
      String[] sides = arguments[number].split("=", 2);
      options.put(sides[0], sides[1]);
    }
    ClassLoader loader = FlinkReader.class.getClassLoader();
    LogicalType rowType = LogicalTypeParser.parse(arguments[1], loader);
    DeserializationSchema<RowData> schema = schema(loader, arguments[0], rowType, options);
    RowDataToJsonConverter asJson =
        new RowDataToJsonConverters(TimestampFormat.SQL, MapNullKeyMode.FAIL, "", false)
            .createConverter(rowType);
    DataInputStream messages = new DataInputStream(new BufferedInputStream(System.in));
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    int count = messages.readInt();
    for (int number = 0; number < count; number++) {
      answers.println(JSON.writeValueAsString(answer(schema, asJson, message(messages))));
    }
    answers.flush();
  }

  private static DeserializationSchema<RowData> schema(
      ClassLoader loader, String format, LogicalType rowType, Map<String, String> options)
      throws Exception {
    DecodingFormat<DeserializationSchema<RowData>> decoding =
        FactoryUtil.discoverFactory(loader, DeserializationFormatFactory.class, format)
            .createDecodingFormat(null, Configuration.fromMap(options));
    DataType dataType = TypeConversions.fromLogicalToDataType(rowType);
    DeserializationSchema<RowData> schema =
        decoding.createRuntimeDecoder(new OutsideOfAJob(), dataType);
    schema.open(null);
    return schema;
  }

  private static byte[] message(DataInputStream messages) throws IOException {
    int length = messages.readInt();
    if (length < 0) {
      return null;
    }
    byte[] message = new byte[length];
    messages.readFully(message);
    return message;
  }

  private static ObjectNode answer(
      DeserializationSchema<RowData> schema, RowDataToJsonConverter asJson, byte[] message) {
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode changes = answer.putArray("changes");
    try {
      schema.deserialize(
          message,
          new Collector<>() {
            @Override
            public void collect(RowData row) {
              changes.addArray()
                  .add(row.getRowKind().shortString())
                  .add(asJson.convert(JSON, null, row));
            }

            @Override
            public void close() {}
          });
    } catch (IOException refusal) {
      return JSON.createObjectNode().put("refused", root(refusal).toString());
    }
    return answer;
  }

  private static Throwable root(Throwable failure) {
    return failure.getCause() == null ? failure : root(failure.getCause());
  }

  /** What a format asks of a planner; the type that it is told of, only a job would use. */
  private static final class OutsideOfAJob implements DynamicTableSource.Context {
    @Override
    @SuppressWarnings("unchecked")
    public <T> TypeInformation<T> createTypeInformation(DataType produced) {
      return (TypeInformation<T>) TypeInformation.of(RowData.class);
    }

    @Override
    public <T> TypeInformation<T> createTypeInformation(LogicalType produced) {
      throw new UnsupportedOperationException();
    }

    @Override
    public DynamicTableSource.DataStructureConverter createDataStructureConverter(
        DataType produced) {
      throw new UnsupportedOperationException();
    }
  }
}
