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
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "changefeed-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "changefeed-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* commonLabels may override any of these except the selector labels. */}}
{{- define "changefeed-operator.labels" -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- $ours := dict
    "helm.sh/chart" $chart
    "app.kubernetes.io/version" .Chart.AppVersion
    "app.kubernetes.io/component" "operator"
    "app.kubernetes.io/part-of" "changefeed"
    "app.kubernetes.io/managed-by" .Release.Service }}
{{- merge (include "changefeed-operator.selectorLabels" . | fromYaml) .Values.commonLabels $ours | toYaml }}
{{- end }}

{{/* Takes (dict "image" .Values.image "default" .Chart.AppVersion). */}}
{{- define "changefeed-operator.image" -}}
{{- with .image.registry }}{{ . }}/{{ end }}{{ .image.repository }}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .default .image.tag }}{{ end }}
{{- end }}

{{/* Default resources for changefeeds that set none, in the operator's format; empty if there are none. */}}
{{- define "changefeed-operator.defaults" -}}
{{- $roles := dict }}
{{- range $role, $resources := .Values.defaults }}
{{- $set := dict }}
{{- if $resources.cores }}{{ $_ := set $set "cores" (int $resources.cores) }}{{ end }}
{{- if $resources.memory }}{{ $_ := set $set "memory" $resources.memory }}{{ end }}
{{- if $set }}{{ $_ := set $roles $role $set }}{{ end }}
{{- end }}
{{- if $roles }}{{ toJson $roles }}{{ end }}
{{- end }}

{{/* What the changefeeds' NetworkPolicies allow, in the operator's format. */}}
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
