// Queries of Flink SQL, each over a table of its own. Input: lines of two JSON texts, [the table's definition, the query].
// Output: a line for each, {"rows": [[cell, ...], ...]} or {"error": why}. A cell is null or [its Java class, its text].

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

public final class FlinkSql {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    TableEnvironment tables = TableEnvironment.create(EnvironmentSettings.inBatchMode());
    tables.getConfig().set("parallelism.default", "1");
    tables.getConfig().set("table.local-time-zone", "UTC");
    PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    BufferedReader questions =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = questions.readLine(); line != null; line = questions.readLine()) {
      JsonNode question = JSON.readTree(line);
      answers.println(
          JSON.writeValueAsString(answer(tables, question.get(0).asText(), question.get(1).asText())));
    }
  }

  private static ObjectNode answer(TableEnvironment tables, String definition, String query) {
    ObjectNode answer = JSON.createObjectNode();
    ArrayNode rows = answer.putArray("rows");
    try {
      tables.executeSql("DROP TEMPORARY TABLE IF EXISTS t");
      tables.executeSql(definition);
      try (CloseableIterator<Row> found = tables.executeSql(query).collect()) {
        while (found.hasNext()) {
          Row row = found.next();
          ArrayNode cells = rows.addArray();
          for (int place = 0; place < row.getArity(); place++) {
            cells.add(cell(row.getField(place)));
          }
        }
      }
    } catch (Exception refusal) {
      return JSON.createObjectNode().put("error", root(refusal).toString());
    }
    return answer;
  }

  private static JsonNode cell(Object value) {
    if (value == null) {
      return JSON.nullNode();
    }
    ArrayNode cell = JSON.createArrayNode().add(value.getClass().getSimpleName());
    if (value instanceof byte[] bytes) {
      return cell.add(Base64.getEncoder().encodeToString(bytes));
    }
    return value instanceof Map ? cell.add(JSON.valueToTree(value)) : cell.add(value.toString());
  }

  private static Throwable root(Throwable failure) {
    return failure.getCause() == null ? failure : root(failure.getCause());
  }
}
