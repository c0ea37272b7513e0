{{- define "changefeed-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "changefeed-operator.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "changefeed-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "changefeed-operator.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "changefeed-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "changefeed-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "changefeed-operator.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "changefeed-operator.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: changefeed
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Of (dict "image" .Values.image "default" .Chart.AppVersion). */}}
{{- define "changefeed-operator.image" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .default .image.tag }}{{ end }}
{{- end }}

{{- define "changefeed-operator.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "changefeed-operator.podSecurityContext" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* What changefeeds' NetworkPolicies let through, as the operator reads it. */}}
{{- define "changefeed-operator.network" -}}
{{- $ports := list }}
{{- range .Values.networkPolicy.apiServerPorts }}{{ $ports = append $ports (int .) }}{{ end }}
{{- $tikv := list }}
{{- range .Values.changefeedEgress.tikvPorts }}{{ $tikv = append $tikv (int .) }}{{ end }}
{{- $from := .Values.metricsFrom }}
{{- if and $from .Values.web.enabled }}
{{- $home := dict "matchLabels" (dict "kubernetes.io/metadata.name" .Release.Namespace) }}
{{- $operator := dict "matchLabels" (include "changefeed-operator.selectorLabels" . | fromYaml) }}
{{- $from = append $from (dict "namespaceSelector" $home "podSelector" $operator) }}
{{- end }}
{{- dict "metrics_from" $from "api_server_ports" $ports "tikv_ports" $tikv
    "to" .Values.changefeedEgress.to "extra_egress" .Values.changefeedEgress.extra | toJson }}
{{- end }}
