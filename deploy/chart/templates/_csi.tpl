{{- /* What cannot be said by the schema: the values of csi that contradict others. */}}
{{- define "volplane.checkedCsi" -}}
{{- $csi := .Values.csi }}
{{- range .Values.config.drivers }}
{{- if eq .name $csi.driverName }}
{{- fail (printf "csi.driverName: %s is also a driver of config.drivers; its volumes would be made twice" .name) }}
{{- end }}
{{- end }}
{{- if hasSuffix "/csi" (.Values.config.clusterId | default "") }}
{{- fail "config.clusterId ends with /csi, as the marks of the volumes of csi do; choose another one" }}
{{- end }}
{{- if and $csi.perNode $csi.attach }}
{{- fail "csi.perNode and csi.attach exclude each other: a root of each node's own is not attached" }}
{{- end }}
{{- if and $csi.perNode (not $csi.node.enabled) }}
{{- fail "csi.perNode needs csi.node.enabled" }}
{{- end }}
{{- end }}

{{- /* The directory of the socket as the kubelet sees it. */}}
{{- define "volplane.csiPlugin" -}}
{{ .Values.csi.node.kubeletDir }}/plugins/{{ .Values.csi.driverName }}
{{- end }}

{{- /* The stock sidecars that run, by their names, as JSON. */}}
{{- define "volplane.sidecars" -}}
{{- $csi := .Values.csi }}
{{- $names := list "csi-provisioner" }}
{{- if $csi.attach }}{{ $names = append $names "csi-attacher" }}{{ end }}
{{- if and $csi.expand (not $csi.perNode) }}{{ $names = append $names "csi-resizer" }}{{ end }}
{{- if $csi.snapshots }}{{ $names = append $names "csi-snapshotter" }}{{ end }}
{{- $names | toJson }}
{{- end }}

{{- /* The bridge: (root, services, socket). */}}
{{- define "volplane.bridge" -}}
{{- $root := index . 0 }}{{ $services := index . 1 }}{{ $csi := $root.Values.csi }}
name: volplane
image: {{ include "volplane.image" $root }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
command: [volplane, csi]
args:
  - --backend={{ $csi.backend }}
  - --driver-name={{ $csi.driverName }}
  - --cluster={{ $csi.cluster }}
  - --services={{ $services }}
  - --endpoint=unix://{{ index . 2 }}/csi.sock
  {{- if not $csi.topology }}
  - --no-topology
  {{- end }}
  {{- if contains "node" $services }}
  - --node-id=$(NODE_NAME)
  - --kubelet-dir={{ $csi.node.kubeletDir }}
  {{- end }}
  {{- range $key, $value := $csi.options }}
  - {{ printf "--option=%s=%s" $key (kindIs "string" $value | ternary $value (toJson $value)) | quote }}
  {{- end }}
  - --log-format=json
resources: {{- $root.Values.resources | toYaml | nindent 2 }}
{{- end }}

{{- /* The sidecars as containers: (root, directory of the socket). */}}
{{- define "volplane.sidecarContainers" -}}
{{- $root := index . 0 }}{{ $csi := $root.Values.csi }}
{{- range include "volplane.sidecars" $root | fromJsonArray }}
- name: {{ . }}
  image: {{ get $csi.sidecars . }}
  args:
    - --csi-address={{ index $ 1 }}/csi.sock
    {{- if not $csi.perNode }}
    - --leader-election
    {{- else }}
    - --node-deployment
    {{- end }}
    {{- if eq . "csi-provisioner" }}
    - --extra-create-metadata
    {{- if $csi.perNode }}
    - --immediate-topology=false
    - --strict-topology
    {{- end }}
    {{- if $csi.storageCapacity }}
    - --enable-capacity
    - --capacity-ownerref-level={{ $csi.perNode | ternary 1 2 }}
    {{- end }}
    {{- end }}
  env:
    - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
  volumeMounts:
    - {name: socket, mountPath: {{ index $ 1 }}}
{{- end }}
{{- end }}

{{- /* Directories of the nodes that the backend works in: for pods, and for their container. */}}
{{- define "volplane.csiVolumes" -}}
{{- range $n, $path := .Values.csi.mounts }}
- {name: mount-{{ $n }}, hostPath: {path: {{ $path }}, type: Directory}}
{{- end }}
{{- end }}
{{- define "volplane.csiVolumeMounts" -}}
{{- range $n, $path := .Values.csi.mounts }}
- {name: mount-{{ $n }}, mountPath: {{ $path }}, mountPropagation: HostToContainer}
{{- end }}
{{- end }}

{{- /* Fields of both pods. */}}
{{- define "volplane.csiPod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: 30
{{- end }}
