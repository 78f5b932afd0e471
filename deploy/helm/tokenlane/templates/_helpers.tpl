{{- define "tokenlane.name" -}}
{{ .Release.Name }}
{{- end -}}

{{- define "tokenlane.selector" -}}
app.kubernetes.io/name: tokenlane
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tokenlane.labels" -}}
{{ include "tokenlane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}
