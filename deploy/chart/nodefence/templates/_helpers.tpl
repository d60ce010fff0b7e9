{{/* The name of all objects. With another release name than nodefence it is RELEASE-nodefence. */}}
{{- define "nodefence.name" -}}
{{- if contains "nodefence" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-nodefence" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels by which pods are found. `kubectl nodefence` finds agents by name and component. */}}
{{- define "nodefence.selector" -}}
app.kubernetes.io/name: nodefence
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nodefence.labels" -}}
{{ include "nodefence.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels of a pod. The chart's version is not among them: a change of it alone restarts no pod. */}}
{{- define "nodefence.podLabels" -}}
{{ include "nodefence.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The annotations of an object that is no hook. */}}
{{- define "nodefence.annotations" -}}
{{- with .Values.annotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The metadata of a hook. Takes: context, name, hook, weight, namespaced, and keep: it stays after its success. */}}
{{- define "nodefence.hook" -}}
name: {{ include "nodefence.name" .context }}-{{ .name }}
{{- if .namespaced }}
namespace: {{ .context.Release.Namespace }}
{{- end }}
labels:
  {{- include "nodefence.labels" .context | nindent 2 }}
annotations:
  helm.sh/hook: {{ .hook }}
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation{{ if not .keep }},hook-succeeded{{ end }}
  {{- with .context.Values.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "nodefence.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "nodefence.pullSecrets" -}}
{{- with .Values.image.pullSecrets -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The container of a Job or of the controller: no privilege at all. */}}
{{- define "nodefence.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The securityContext of a container of the agent's pod. Takes: context, capabilities. */}}
{{- define "nodefence.node" -}}
{{- $profile := dict "runAsUser" 0 "runAsGroup" 0 "readOnlyRootFilesystem" true -}}
{{- if eq .context.Values.agent.profile "privileged" -}}
{{- $_ := set $profile "privileged" true -}}
{{- else -}}
{{- $_ := set $profile "allowPrivilegeEscalation" false -}}
{{- $_ := set $profile "capabilities" (dict "drop" (list "ALL") "add" .capabilities) -}}
{{- $_ := set $profile "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- end -}}
{{- toYaml (mergeOverwrite $profile (deepCopy .context.Values.agent.securityContext)) -}}
{{- end -}}

{{/* The variables of the agent's pod, for both containers. */}}
{{- define "nodefence.nodeEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
# During a rollout two pods of a node share the socket and the port.
- name: NODEFENCE_POD_UID
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
# Not below /sys/fs/bpf: where the host has no BPF filesystem, the agent would mount one there, which would end with the container.
- name: NODEFENCE_PIN_DIR
  value: /host/bpf/nodefence/v3
{{- with .Values.agent.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "nodefence.nodeMounts" -}}
- name: run
  mountPath: /run/nodefence
- name: bpf
  mountPath: /host/bpf
  mountPropagation: HostToContainer
{{- end -}}

{{/* The spec of a hook's Job. Takes: context, component, args. */}}
{{- define "nodefence.job" -}}
backoffLimit: 3
activeDeadlineSeconds: 300
{{- with .ttl }}
ttlSecondsAfterFinished: {{ . }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "nodefence.podLabels" .context | nindent 6 }}
      app.kubernetes.io/component: {{ .component }}
  spec:
    serviceAccountName: {{ include "nodefence.name" .context }}-{{ .component }}
    {{- with include "nodefence.pullSecrets" .context }}{{ . | nindent 4 }}{{ end }}
    restartPolicy: Never
    enableServiceLinks: false
    nodeSelector:
      kubernetes.io/os: linux
    tolerations:
      {{- toYaml .context.Values.controller.tolerations | nindent 6 }}
    containers:
      - name: {{ .component }}
        image: {{ include "nodefence.image" .context }}
        imagePullPolicy: {{ .context.Values.image.pullPolicy }}
        command: [/nodefence]
        args:
          {{- toYaml .args | nindent 10 }}
          {{- with .context.Values.apiServer }}
          - --api-server={{ . }}
          {{- end }}
        securityContext:
          {{- include "nodefence.restricted" .context | nindent 10 }}
        resources:
          requests: { cpu: 10m, memory: 32Mi }
          limits: { memory: 128Mi }
{{- end -}}
