// Debezium's embedded engine over a slot of a PostgreSQL: each change becomes a line of JSON in a file. Arguments: the
// engine's properties, the file to write, and a table; it ends behind the first batch with a change of that table. What
// is committed to the engine is in the file.

import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.JsonByteArray;
import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;

public final class DebeziumReader {
  private static final int BUFFER = 1 << 20;

  private final OutputStream out;
  private final String end;
  private final CompletableFuture<Void> ended = new CompletableFuture<>();

  private DebeziumReader(OutputStream out, String table) {
    this.out = out;
    this.end = "." + table;
  }

  public static void main(String[] arguments) throws Exception {
    Properties properties = new Properties();
    try (var given = Files.newInputStream(Path.of(arguments[0]))) {
      properties.load(given);
    }
    try (OutputStream out = new BufferedOutputStream(Files.newOutputStream(Path.of(arguments[1])), BUFFER)) {
      new DebeziumReader(out, arguments[2]).read(properties);
    }
    System.exit(0); // whatever threads it leaves
  }

  private void read(Properties properties) throws Exception {
    DebeziumEngine<ChangeEvent<byte[], byte[]>> engine =
        DebeziumEngine.create(JsonByteArray.class)
            .using(properties)
            .notifying(this::write)
            .using(
                (success, message, error) -> {
                  if (!success) {
                    ended.completeExceptionally(new IllegalStateException(message, error));
                  }
                })
            .build();
    new Thread(engine).start();
    try {
      ended.get();
    } catch (Exception failure) {
      failure.printStackTrace();
      System.exit(1);
    }
    engine.close();
  }

  private void write(
      List<ChangeEvent<byte[], byte[]>> batch,
      DebeziumEngine.RecordCommitter<ChangeEvent<byte[], byte[]>> committer)
      throws InterruptedException {
    boolean isLast = false;
    try {
      for (ChangeEvent<byte[], byte[]> change : batch) {
        if (change.value() != null) {
          out.write(change.value());
          out.write('\n');
        }
        isLast |= change.destination().endsWith(end);
        committer.markProcessed(change);
      }
      out.flush();
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
    committer.markBatchFinished();
    if (isLast) {
      ended.complete(null);
    }
  }
}
