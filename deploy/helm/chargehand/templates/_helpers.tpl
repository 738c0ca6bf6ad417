{{/* The name of everything: that of the release, which should say chargehand. Short enough for "-settings" behind it. */}}
{{- define "chargehand.name" -}}
{{- if contains "chargehand" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-chargehand" (.Release.Name | trunc 39 | trimSuffix "-") }}
{{- end }}
{{- end }}

{{/* What tells the nodes of this release from all other pods. */}}
{{- define "chargehand.selector" -}}
app.kubernetes.io/name: chargehand
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "chargehand.metadata" -}}
name: {{ include "chargehand.name" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "chargehand.labels" . | nindent 2 }}
{{- end }}

{{- define "chargehand.labels" -}}
{{ include "chargehand.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "chargehand.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "chargehand.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "chargehand.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end }}
