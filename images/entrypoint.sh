#!/bin/bash
# The entrypoint that Spark's Kubernetes backend expects: the first argument is "driver" or "executor", the rest comes
# from arguments and the environment. Any other command is executed as is.
#
# The driver process is Python, not spark-submit, so that SIGTERM reaches the owner, which drains. Python starts the JVM
# with the properties that the submission mounted.
set -euo pipefail

init=()
if command -v tini > /dev/null; then
  init=(tini -s --) # Spark's workers leave orphans, which PID 1 must reap
fi

case "${1:-}" in
driver)
  shift
  while [ "${1:-}" = --properties-file ] || [ "${1:-}" = --class ]; do
    if [ "$1" = --properties-file ]; then
      export CHANGEFEED_SPARK_PROPERTIES=$2
    fi
    shift 2
  done
  main=${1:?"driver: no main file"}
  shift
  # With this folder on the class path, the JVM would reject the class archive. Its properties file is passed by path.
  unset SPARK_CONF_DIR
  exec "${init[@]}" python "${main#local://}" "$@"
  ;;
executor)
  options=()
  while read -r name; do
    options+=("${!name}")
  done < <(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n)
  # Spark reads its secret from a file only if the master is k8s, and the driver has not sent the settings yet.
  options+=(-Dspark.master=k8s://)
  # Must match class_archive.jars_in_order: the class archive was built for this class path.
  LC_ALL=C
  jars=("$SPARK_HOME"/jars/slf4j-api-*.jar)
  for jar in "$SPARK_HOME"/jars/*.jar; do
    [[ $jar == */slf4j-api-* ]] || jars+=("$jar")
  done
  exec "${init[@]}" "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "$(IFS=:; printf %s "${jars[*]}")" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec "${init[@]}" "$@"
  ;;
esac
