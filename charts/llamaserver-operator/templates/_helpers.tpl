{{- define "operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains (include "operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "operator.name" .) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "operator.selector" -}}
app.kubernetes.io/name: {{ include "operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: llamaserver
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "operator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name the ServiceAccount to use, or set serviceAccount.create to true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* An image reference: (list .Values.image .Chart.AppVersion) */ -}}
{{- define "operator.image" -}}
{{- $image := index . 0 -}}
{{- $image.repository -}}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ default (index . 1) $image.tag }}{{- end -}}
{{- end -}}

{{- define "operator.signingSecret" -}}
{{ include "operator.fullname" . }}-signing-key
{{- end -}}

{{- /* What the operator may do in the namespaces whose LlamaServers it serves. */ -}}
{{- define "operator.watchedRules" -}}
- apiGroups: [llamaserver.dev]
  resources: [llamaservers]
  verbs: [get, list, watch]
- apiGroups: [llamaserver.dev]
  resources: [llamaservers/status]
  verbs: [patch]
# Where the admission plugin OwnerReferencesPermissionEnforcement is on, owner references need it. No finalizer is written.
- apiGroups: [llamaserver.dev]
  resources: [llamaservers/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# Pods are made by Deployments; patch sets the deletion cost, which chooses the one to go at a scale-down.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch]
# Used only where spec.recovery.replaceStalledAfter asks for it; disruption budgets have the last word.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}
