// A standard TiKV client against the development cluster. Prints one JSON line for each check; stops at the first that
// fails. Between two checks it prints {"ready": ...} and waits for a line, so that the test can change the layout.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import org.tikv.common.BytePairWrapper;
import org.tikv.common.ByteWrapper;
import org.tikv.common.TiConfiguration;
import org.tikv.common.TiSession;
import org.tikv.common.meta.TiTimestamp;
import org.tikv.common.util.BackOffer;
import org.tikv.common.util.ConcreteBackOffer;
import org.tikv.kvproto.Kvrpcpb.KvPair;
import org.tikv.shade.com.google.protobuf.ByteString;
import org.tikv.txn.KVClient;
import org.tikv.txn.TwoPhaseCommitter;

public final class Conformance {
  private static final int WAIT_MS = 20_000;
  private static final int SOON_MS = 1_000;
  private static final int SHORT_TTL_MS = 300;

  private final TiSession session;
  private final KVClient client;
  private final BufferedReader commands =
      new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

  private Conformance(TiSession session) {
    this.session = session;
    this.client = session.createKVClient();
  }

  public static void main(String[] arguments) throws Exception {
    TiConfiguration configuration = TiConfiguration.createDefault(arguments[0]);
    configuration.setWarmUpEnable(false);
    int exit = 0;
    try (TiSession session = TiSession.create(configuration)) {
      new Conformance(session).run();
    } catch (Throwable failure) {
      failure.printStackTrace();
      exit = 1;
    }
    System.out.flush();
    System.exit(exit); // the client leaves threads behind
  }

  private interface Check {
    void run() throws Exception;
  }

  private void run() throws Exception {
    check("timestamps rise", this::timestamps);
    check("split and scatter", this::split);
    check("two-phase commit over two regions", this::commitOverTwoRegions);
    check("scan over two regions", this::scan);
    check("batch get", this::batchGet);
    check("old snapshot", this::oldSnapshot);
    check("write conflict", this::writeConflict);
    check("reader passes a living lock", this::livingLock);
    check("abandoned lock is rolled back", this::abandonedLock);
    check("abandoned secondary is committed", this::abandonedSecondary);
    check("unlocked commit is refused", this::unlockedCommit);
    ready("layout");
    check("commit after split, merge and transfer", this::commitInNewLayout);
  }

  private void check(String name, Check body) throws Exception {
    try {
      body.run();
    } catch (Throwable failure) {
      say("{\"check\": \"" + name + "\", \"ok\": false, \"error\": \"" + escaped(failure.toString()) + "\"}");
      throw failure;
    }
    say("{\"check\": \"" + name + "\", \"ok\": true}");
  }

  private void ready(String what) throws Exception {
    say("{\"ready\": \"" + what + "\"}");
    commands.readLine();
  }

  // --- checks ---

  private void timestamps() {
    long before = 0;
    for (int i = 0; i < 100; i++) {
      long now = now();
      expect(now > before, now + " is not above " + before);
      before = now;
    }
  }

  private void split() {
    session.splitRegionAndScatter(Arrays.asList(bytes("k5"), bytes("k7")));
    session.getRegionManager().invalidateAll();
    long left = session.getRegionManager().getRegionByKey(key("k1")).getId();
    long middle = session.getRegionManager().getRegionByKey(key("k5")).getId();
    long right = session.getRegionManager().getRegionByKey(key("k9")).getId();
    expect(left != middle && middle != right && left != right, "the split is not in the layout");
  }

  private void commitOverTwoRegions() throws Exception {
    commit("k1", "one", "k2", "two", "k6", "six", "k9", "nine");
    expectValue("one", read("k1", now()));
    expectValue("nine", read("k9", now()));
    expectValue("", read("k3", now()));
  }

  private void scan() {
    expectValue("[k1=one, k2=two, k6=six, k9=nine]", text(client.scan(key("k1"), key("kz"), now())));
    expectValue("[k2=two, k6=six]", text(client.scan(key("k2"), key("k9"), now())));
    List<KvPair> prefixed = new ArrayList<>();
    session.createSnapshot().scanPrefix(key("k")).forEachRemaining(prefixed::add);
    expectValue("[k1=one, k2=two, k6=six, k9=nine]", text(prefixed));
  }

  private void batchGet() {
    List<KvPair> pairs = client.batchGet(backOff(), Arrays.asList(key("k1"), key("k4"), key("k9")), now());
    List<KvPair> found =
        pairs.stream()
            .filter(pair -> !pair.getValue().isEmpty())
            .sorted(Comparator.comparing(pair -> pair.getKey().toStringUtf8()))
            .collect(Collectors.toList());
    expectValue("[k1=one, k9=nine]", text(found));
  }

  private void oldSnapshot() throws Exception {
    long before = now();
    commit("k1", "uno", "k9", "nove");
    expectValue("one", read("k1", before));
    expectValue("nine", read("k9", before));
    expectValue("one", client.scan(key("k1"), key("k2"), before).get(0).getValue().toStringUtf8());
    expectValue("uno", read("k1", now()));
    expectValue("nove", session.createSnapshot().get(key("k9")).toStringUtf8());
  }

  private void writeConflict() throws Exception {
    long early = now();
    commit("k2", "newer");
    try (TwoPhaseCommitter committer = new TwoPhaseCommitter(session, early)) {
      expectThrows(
          "a prewrite below a newer version",
          () -> committer.prewritePrimaryKey(soon(), bytes("k2"), bytes("older")));
    }
    expectValue("newer", read("k2", now()));
  }

  private void livingLock() throws Exception {
    TwoPhaseCommitter committer = new TwoPhaseCommitter(session, now(), 60_000);
    long early = now();
    committer.prewritePrimaryKey(backOff(), bytes("k4"), bytes("four"));
    long reader = now();
    expectValue("", read("k4", reader));
    expectThrows("a commit below a reader", () -> committer.commitPrimaryKey(soon(), bytes("k4"), early));
    committer.commitPrimaryKey(backOff(), bytes("k4"), now());
    expectValue("", read("k4", reader));
    expectValue("four", read("k4", now()));
    committer.close();
  }

  private void abandonedLock() throws Exception {
    long start = now();
    TwoPhaseCommitter committer = new TwoPhaseCommitter(session, start, SHORT_TTL_MS);
    committer.prewritePrimaryKey(backOff(), bytes("k1"), bytes("lost"));
    committer.prewriteSecondaryKeys(bytes("k1"), pairs("k9", "lost").iterator(), WAIT_MS);
    while (TiTimestamp.extractPhysical(now()) <= TiTimestamp.extractPhysical(start) + SHORT_TTL_MS) {
      Thread.sleep(10);
    }
    expectValue("nove", read("k9", now()));
    expectValue("uno", read("k1", now()));
    expectThrows("a commit after the rollback", () -> committer.commitPrimaryKey(soon(), bytes("k1"), now()));
    expectValue("uno", read("k1", now()));
    committer.close();
  }

  private void abandonedSecondary() throws Exception {
    long start = now();
    TwoPhaseCommitter committer = new TwoPhaseCommitter(session, start, 60_000);
    committer.prewritePrimaryKey(backOff(), bytes("k1"), bytes("kept"));
    committer.prewriteSecondaryKeys(bytes("k1"), pairs("k8", "kept", "k9", "kept").iterator(), WAIT_MS);
    committer.commitPrimaryKey(backOff(), bytes("k1"), now());
    expectValue("kept", read("k9", now()));
    expectValue("[k8=kept, k9=kept]", text(client.scan(key("k8"), key("kz"), now())));
  }

  private void unlockedCommit() throws Exception {
    try (TwoPhaseCommitter committer = new TwoPhaseCommitter(session, now())) {
      expectThrows(
          "a commit without a lock", () -> committer.commitPrimaryKey(soon(), bytes("k3"), now()));
    }
    expectValue("", read("k3", now()));
  }

  private void commitInNewLayout() throws Exception {
    commit("k1", "a", "k2", "b", "k6", "c", "k9", "d");
    expectValue("[k1=a, k2=b, k4=four, k6=c, k8=kept, k9=d]", text(client.scan(key("k1"), key("kz"), now())));
  }

  // --- words ---

  /** Commits pairs of key and value in one transaction, the first key as its primary; gives the commit ts. */
  private long commit(String... pairs) throws Exception {
    long start = now();
    List<BytePairWrapper> rest = pairs(Arrays.copyOfRange(pairs, 2, pairs.length));
    try (TwoPhaseCommitter committer = new TwoPhaseCommitter(session, start)) {
      committer.prewritePrimaryKey(backOff(), bytes(pairs[0]), bytes(pairs[1]));
      committer.prewriteSecondaryKeys(bytes(pairs[0]), rest.iterator(), WAIT_MS);
      long commit = now();
      committer.commitPrimaryKey(backOff(), bytes(pairs[0]), commit);
      List<ByteWrapper> keys =
          rest.stream().map(pair -> new ByteWrapper(pair.getKey())).collect(Collectors.toList());
      committer.commitSecondaryKeys(keys.iterator(), commit, WAIT_MS);
      return commit;
    }
  }

  private String read(String key, long version) {
    return client.get(key(key), version).toStringUtf8();
  }

  private static String text(List<KvPair> pairs) {
    return pairs.stream()
        .map(pair -> pair.getKey().toStringUtf8() + "=" + pair.getValue().toStringUtf8())
        .collect(Collectors.toList())
        .toString();
  }

  private long now() {
    return session.getTimestamp().getVersion();
  }

  private static List<BytePairWrapper> pairs(String... pairs) {
    List<BytePairWrapper> made = new ArrayList<>();
    for (int i = 0; i < pairs.length; i += 2) {
      made.add(new BytePairWrapper(bytes(pairs[i]), bytes(pairs[i + 1])));
    }
    return made;
  }

  private static BackOffer backOff() {
    return ConcreteBackOffer.newCustomBackOff(WAIT_MS);
  }

  /** For calls that are to be refused: no need to try long. */
  private static BackOffer soon() {
    return ConcreteBackOffer.newCustomBackOff(SOON_MS);
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  private static ByteString key(String text) {
    return ByteString.copyFromUtf8(text);
  }

  private static void expect(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }

  private static void expectThrows(String what, Check body) throws Exception {
    try {
      body.run();
    } catch (Exception refused) {
      return;
    }
    throw new AssertionError(what + " was not refused");
  }

  private static void expectValue(String expected, String found) {
    expect(expected.equals(found), "expected " + expected + ", found " + found);
  }

  private static void say(String line) {
    System.out.println(line);
    System.out.flush();
  }

  private static String escaped(String text) {
    StringBuilder safe = new StringBuilder();
    for (char c : text.toCharArray()) {
      safe.append(c == '"' || c == '\\' || c < ' ' ? ' ' : c);
    }
    return safe.toString();
  }
}
