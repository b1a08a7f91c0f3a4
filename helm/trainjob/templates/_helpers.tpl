{{/* One installation a namespace: names are fixed, so that a second one is refused by Helm instead of fighting the first. */}}
{{- define "trainjob.name" -}}trainjob-operator{{- end -}}

{{- define "trainjob.selector" -}}
app.kubernetes.io/name: trainjob
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "trainjob.labels" -}}
{{ include "trainjob.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* (list root name) -> registry/name:tag; a name with a digest is taken as it is. */}}
{{- define "trainjob.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- with $root.Values.image.registry }}{{ . | trimSuffix "/" }}/{{ end -}}
{{ $name }}{{ if not (contains "@" $name) }}:{{ $root.Values.image.tag | default $root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "trainjob.priorityClassName" -}}
{{- if .Values.priorityClassName }}{{ .Values.priorityClassName }}{{ else if .Values.priorityClass.create }}{{ include "trainjob.name" . }}{{ end -}}
{{- end -}}

{{/* What no schema can say with a helpful text. Called once, by the Deployment. */}}
{{- define "trainjob.check" -}}
{{- if and (eq .Values.scope "namespaces") (not .Values.namespaces) -}}
{{- fail "scope is `namespaces`, but `namespaces` is empty: list those to serve, --set namespaces='{team-a,team-b}'" -}}
{{- end -}}
{{- if and (eq .Values.scope "cluster") .Values.namespaces -}}
{{- fail (printf "namespaces is %v, but scope is `cluster`, which serves all: add --set scope=namespaces, or leave `namespaces` empty" .Values.namespaces) -}}
{{- end -}}
{{- end -}}

{{/* Rights on jobs and what belongs to them, in each served namespace. */}}
{{- define "trainjob.jobRules" -}}
- apiGroups: [trainjob.dev]
  resources: [trainjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [trainjob.dev]
  resources: [trainjobs/status]
  verbs: [patch]
- apiGroups: [trainjob.dev]
  resources: [trainjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create, patch]
# Which installation serves the namespace.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [trainjob-served-by]
  verbs: [get, update]
{{- end -}}
