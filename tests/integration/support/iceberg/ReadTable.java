import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.BaseTable;
import org.apache.iceberg.StaticTableOperations;
import org.apache.iceberg.Table;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.types.Types.NestedField;

/** Prints the rows of a table, given its metadata file: name US value RS name US value ... */
public class ReadTable {
    public static void main(String[] arguments) throws Exception {
        HadoopFileIO files = new HadoopFileIO(new Configuration());
        Table table = new BaseTable(new StaticTableOperations(arguments[0], files), "table");
        try (CloseableIterable<Record> rows = IcebergGenerics.read(table).build()) {
            for (Record row : rows) {
                StringBuilder line = new StringBuilder("ROW");
                for (NestedField field : table.schema().columns()) {
                    line.append('\036').append(field.name()).append('\037').append(row.getField(field.name()));
                }
                System.out.println(line);
            }
        }
    }
}
