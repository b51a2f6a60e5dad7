{{- define "volplane.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if hasPrefix "@" $tag }}{{ else }}:{{ end }}{{ $tag -}}
{{- end }}

{{- /* The controllers and their rights, see files/rules.yaml; as JSON. */}}
{{- define "volplane.rules" -}}
{{- tpl (.Files.Get "files/rules.yaml") . | fromYaml | toJson -}}
{{- end }}

{{- /* The controllers that run, as JSON. */}}
{{- define "volplane.controllers" -}}
{{- $known := (include "volplane.rules" . | fromJson).controllers -}}
{{- if and (has "all" .Values.controllers) (gt (len .Values.controllers) 1) -}}
{{- fail "controllers: all stands alone, or leave it out and name them" -}}
{{- end -}}
{{- if and (not .Values.controllers) (or .Values.config.drivers (not .Values.csi.enabled)) -}}
{{- fail "controllers: none, but for csi.enabled without config.drivers" -}}
{{- end -}}
{{- range without .Values.controllers "all" -}}
{{- if not (has . $known) -}}
{{- fail (printf "controllers: %s is no controller; give all, or some of %s" . (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- (has "all" .Values.controllers | ternary $known .Values.controllers) | toJson -}}
{{- end }}

{{- /* The rules of a role: (root, key of files/rules.yaml). */}}
{{- define "volplane.role" -}}
{{- $root := index . 0 }}
{{- $controllers := include "volplane.controllers" $root | fromJsonArray }}
{{- range get (include "volplane.rules" $root | fromJson) (index . 1) }}
{{- if and (or (not .controller) (has .controller $controllers)) (or (not .publishing) (include "volplane.publishing" $root)) }}
{{ .rules | toYaml }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The configuration file of volplane. */}}
{{- define "volplane.configuration" -}}
{{- toYaml .Values.config }}
{{ end }}

{{- /* Whether some driver is served by processes of nodes: text or nothing. */}}
{{- define "volplane.distributed" -}}
{{- range .Values.config.drivers }}{{ if .distributed }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* The names of the drivers on nodes, as a list in JSON. */}}
{{- define "volplane.ofNodes" -}}
{{- $names := list }}
{{- range .Values.config.drivers }}{{ if .distributed }}{{ $names = append $names .name }}{{ end }}{{ end }}
{{- toJson $names }}
{{- end }}

{{- /* Whether the capacity of some driver is published: text or nothing. */}}
{{- define "volplane.publishing" -}}
{{- range .Values.config.drivers }}{{ if or .distributed .storageCapacity }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* The namespace of the processes of nodes. */}}
{{- define "volplane.nodes" -}}
{{- .Release.Namespace }}-nodes
{{- end }}

{{- /* Namespace -> names of the Secrets that options refer to as secret:NAMESPACE/NAME/KEY, as JSON: (root, account). That
of the nodes reads those of distributed drivers, and of extensions, which every process has. */}}
{{- define "volplane.secrets" -}}
{{- $root := index . 0 }}{{ $all := eq (index . 1) "volplane" }}
{{- $found := dict }}{{ $options := list }}
{{- range $root.Values.config.drivers }}{{ if or .distributed $all }}{{ $options = append $options .options }}{{ end }}{{ end }}
{{- range $root.Values.config.extensions }}{{ $options = append $options .options }}{{ end }}
{{- range $options }}
{{- range . }}
{{- $given := list }}{{ if kindIs "string" . }}{{ $given = splitList "," . }}{{ else if kindIs "slice" . }}{{ $given = . }}{{ end }}
{{- range $given }}
{{- if regexMatch "^secret:[a-z0-9][-a-z0-9]*/[a-z0-9][-.a-z0-9]*/([-._A-Za-z0-9]+|[*])$" (trim (toString .)) }}
{{- $parts := splitList "/" (trimPrefix "secret:" (trim (toString .))) }}
{{- $names := append (get $found (index $parts 0) | default list) (index $parts 1) }}
{{- $_ := set $found (index $parts 0) ($names | uniq | sortAlpha) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Directories of the nodes, for pods and for their container. */}}
{{- define "volplane.volumes" -}}
{{- range $n, $path := .Values.mounts }}
- {name: mount-{{ $n }}, hostPath: {path: {{ $path }}, type: Directory}}
{{- end }}
{{- end }}
{{- define "volplane.volumeMounts" -}}
{{- range $n, $path := .Values.mounts }}
- {name: mount-{{ $n }}, mountPath: {{ $path }}, mountPropagation: HostToContainer}
{{- end }}
{{- end }}

{{- /* The rule for Secrets of a namespace that options refer to: (root, account, namespace). */}}
{{- define "volplane.namedSecrets" -}}
{{- with get (include "volplane.secrets" . | fromJson) (index . 2) }}
- {apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: {{ toJson . }}}
{{- end }}
{{- end }}

{{- /* The name of what an account has outside of the namespaces of the release: (root, account). */}}
{{- define "volplane.nameOutside" -}}
{{- $namespace := (index . 0).Release.Namespace }}
{{- index . 1 }}{{ if ne $namespace "volplane-system" }}.{{ $namespace }}{{ end }}
{{- end }}

{{- /* Bind a role to an account: (root, kind of the role, account, namespace or ""). Outside of the namespaces of the
release the role has a name of its own. */}}
{{- define "volplane.bind" }}
{{- $root := index . 0 }}{{ $kind := index . 1 }}{{ $name := index . 2 }}{{ $namespace := index . 3 }}
{{- $role := $name }}
{{- if not (has $namespace (list $root.Release.Namespace (include "volplane.nodes" $root))) }}
{{- $role = include "volplane.nameOutside" (list $root $name) }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $kind }}Binding
metadata:
  name: {{ $role }}
  {{- with $namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels: {app.kubernetes.io/name: {{ $name }}}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: {{ $kind }}, name: {{ $role }}}
subjects:
  - kind: ServiceAccount
    name: {{ $name }}
    namespace: {{ if eq $name "volplane-node" }}{{ include "volplane.nodes" $root | quote }}{{ else }}{{ $root.Release.Namespace | quote }}{{ end }}
{{- end }}

{{- /* Let an account read the Secrets of other namespaces that options refer to: (root, name of the account). */}}
{{- define "volplane.readSecrets" }}
{{- $root := index . 0 }}{{ $name := index . 1 }}
{{- $own := list $root.Release.Namespace }}
{{- if include "volplane.distributed" $root }}{{ $own = append $own (include "volplane.nodes" $root) }}{{ end }}
{{- range $namespace, $secrets := include "volplane.secrets" . | fromJson }}
{{- if not (has $namespace $own) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ include "volplane.nameOutside" (list $root $name) }}
  namespace: {{ $namespace | quote }}
  labels: {app.kubernetes.io/name: {{ $name }}}
rules:
  - {apiGroups: [""], resources: [secrets], verbs: [get], resourceNames: {{ $secrets | toJson }}}
{{- include "volplane.bind" (list $root "Role" $name $namespace) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Security of a pod. The argument tells whether it runs as root. */}}
{{- define "volplane.podSecurity" -}}
{{- if . -}}
{runAsNonRoot: false, runAsUser: 0, runAsGroup: 0, seccompProfile: {type: RuntimeDefault}}
{{- else -}}
{runAsNonRoot: true, runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
{{- end -}}
{{- end }}

{{- /* Security of the container, which needs these capabilities to work in directories of others. */}}
{{- define "volplane.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]{{ if . }}, add: [CHOWN, DAC_OVERRIDE, FOWNER]{{ end }}}
{{- end }}

{{- /* The parts that both containers share. */}}
{{- define "volplane.container" -}}
image: {{ include "volplane.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [volplane, run]
ports: [{name: http, containerPort: 9809}]
livenessProbe: {httpGet: {path: /healthz, port: http}, periodSeconds: 10, failureThreshold: 6}
readinessProbe: {httpGet: {path: /readyz, port: http}, periodSeconds: 10}
resources: {{- .Values.resources | toYaml | nindent 2 }}
{{- end }}
