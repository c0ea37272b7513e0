#!/bin/bash
# What Spark's Kubernetes back end asks of an image: the first argument is "driver" or "executor", the rest comes in
# arguments and the environment. Any other command is run as it is.
#
# The driver is Python itself, not spark-submit: so SIGTERM reaches the owner, which drains. Python starts the JVM, with
# the properties that the submission has mounted.
set -euo pipefail

init=()
if command -v tini > /dev/null; then
  init=(tini -s --) # Spark's workers leave orphans, and the first process of a container must reap them
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
  # With this folder in its class path a JVM would refuse the class archive. The file in it is given by name.
  unset SPARK_CONF_DIR
  exec "${init[@]}" python "${main#local://}" "$@"
  ;;
executor)
  options=()
  while read -r name; do
    options+=("${!name}")
  done < <(compgen -v SPARK_JAVA_OPT_ | sort -t _ -k 4 -n)
  # Spark reads the file with its secret only where it knows that it is in Kubernetes; here it has yet to ask the driver.
  options+=(-Dspark.master=k8s://)
  # As class_archive.jars_in_order has them: the class archive was made for it.
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
