{{- define "tokenlane.name" -}}
{{ .Values.fullnameOverride | default .Release.Name }}
{{- end -}}

{{- define "tokenlane.serviceAccount" -}}
{{- $own := ternary (include "tokenlane.name" .) "default" .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default $own }}
{{- end -}}

{{- define "tokenlane.selector" -}}
app.kubernetes.io/name: tokenlane
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenlane.testSelector" -}}
app.kubernetes.io/name: tokenlane-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenlane.valkeySelector" -}}
app.kubernetes.io/name: tokenlane-valkey
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenlane.valkeyName" -}}
{{ include "tokenlane.name" . }}-valkey
{{- end -}}

{{- /* Whether the store is the chart's own; else empty. */ -}}
{{- define "tokenlane.ownStore" -}}
{{- if and .Values.valkey.enabled (not (dig "fleet" "store" "" .Values.settings)) -}}own{{- end -}}
{{- end -}}

{{- /* The gateway's settings, with the chart's own store in them. */ -}}
{{- define "tokenlane.settings" -}}
{{- $settings := .Values.settings -}}
{{- if include "tokenlane.ownStore" . -}}
{{- $store := printf "redis://%s:6379" (include "tokenlane.valkeyName" .) -}}
{{- $settings = merge (dict "fleet" (dict "store" $store)) (deepCopy $settings) -}}
{{- end -}}
{{ toYaml $settings }}
{{- end -}}

{{- define "tokenlane.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tokenlane.labels" -}}
{{ include "tokenlane.selector" . }}
{{ include "tokenlane.commonLabels" . }}
{{- end -}}

{{- define "tokenlane.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "tokenlane.scheme" -}}
{{ .Values.settings.server.tls_cert_file | empty | ternary "http" "https" }}
{{- end -}}

{{- define "tokenlane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tokenlane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end -}}

{{- /* A monitor's endpoint, of its values. */ -}}
{{- define "tokenlane.scrape" -}}
port: admin
path: /metrics
interval: {{ .interval }}
{{- if .tokenSecret.name }}
authorization:
  credentials:
    {{- toYaml .tokenSecret | nindent 4 }}
{{- end }}
{{- end -}}
