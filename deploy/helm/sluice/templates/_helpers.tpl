{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "sluice.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the Pod Security Standard "restricted" asks of a pod, and of a container. */}}
{{- define "sluice.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "sluice.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The token that scrapers send. */}}
{{- define "sluice.metricsMount" -}}
{{- if .Values.metrics.enabled -}}
- {name: metrics-token, mountPath: /etc/sluice/metrics, readOnly: true}
{{- end }}
{{- end }}

{{- define "sluice.metricsVolume" -}}
{{- if .Values.metrics.enabled -}}
- name: metrics-token
  secret: {secretName: {{ .Values.metrics.tokenSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "sluice.serverHost" -}}
{{ .Release.Name }}-server.{{ .Release.Namespace }}.svc
{{- end }}

{{/* The server's certificate: kept over upgrades, and made once in each rendering. */}}
{{- define "sluice.certificate" -}}
{{- if not (hasKey .Release "sluiceCertificate") }}
{{- $name := printf "%s-server-tls" .Release.Name }}
{{- $kept := lookup "v1" "Secret" .Release.Namespace $name }}
{{- if $kept }}
{{- $_ := set .Release "sluiceCertificate" (dict "crt" (index $kept.data "tls.crt" | b64dec) "key" (index $kept.data "tls.key" | b64dec)) }}
{{- else }}
{{- $host := include "sluice.serverHost" . }}
{{- $made := genSelfSignedCert $host nil (list $host) 3650 }}
{{- $_ := set .Release "sluiceCertificate" (dict "crt" $made.Cert "key" $made.Key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* The SHA-256 of the certificate: by it every client knows the server. */}}
{{- define "sluice.fingerprint" -}}
{{- if .Values.server.tls.existingSecret -}}
{{ required "server.tls.fingerprint is needed with server.tls.existingSecret" .Values.server.tls.fingerprint }}
{{- else -}}
{{- include "sluice.certificate" . -}}
{{- $body := .Release.sluiceCertificate.crt | replace "-----BEGIN CERTIFICATE-----" "" | replace "-----END CERTIFICATE-----" "" -}}
{{ $body | replace "\n" "" | b64dec | sha256sum }}
{{- end -}}
{{- end }}

{{- define "sluice.serverUrl" -}}
{{- if .Values.server.enabled -}}
https://{{ include "sluice.serverHost" . }}:7580/{{ include "sluice.fingerprint" . }}
{{- else -}}
{{ .Values.server.url }}
{{- end -}}
{{- end }}

{{/* Whether a pod asks for a GPU, in CEL: the same for the webhook and for the policy. */}}
{{- define "sluice.asksForGpu" -}}
{{- $aliases := .Values.controller.aliases }}
{{- $resources := list "sluice.dev/gpu" }}
{{- if or (has "nvidia" $aliases) (has "hami" $aliases) }}
{{- $resources = append $resources "nvidia.com/gpu" }}
{{- end }}
{{- if has "hami" $aliases }}
{{- $resources = concat $resources (list "nvidia.com/gpumem" "nvidia.com/gpucores") }}
{{- end }}
{{- $annotations := list "sluice.dev/gpu" "sluice.dev/share" "sluice.dev/memory" }}
{{- if has "kai" $aliases }}
{{- $annotations = concat $annotations (list "gpu-fraction" "gpu-memory") }}
{{- end -}}
(has(object.metadata.annotations) &&
object.metadata.annotations.exists(name, name in {{ $annotations | toJson }})) ||
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
has(c.resources) && has(c.resources.limits) &&
c.resources.limits.exists(name, name in {{ $resources | toJson }} && string(c.resources.limits[name]) != "0"))
{{- end }}

{{/* The namespaces whose pods may ask. */}}
{{- define "sluice.namespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ concat (list "kube-system" .Release.Namespace) .Values.controller.excludedNamespaces | uniq | toJson }}
{{- end }}
