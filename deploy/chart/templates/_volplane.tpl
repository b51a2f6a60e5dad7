{{/* Written by tools/chart from the code of `volplane manifests`; `make chart` writes it anew. */}}
{{- define "volplane.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion -}}
{{- .Values.image.repository }}{{ if hasPrefix "@" $tag }}{{ else }}:{{ end }}{{ $tag -}}
{{- end }}

{{- /* The controllers that run, as JSON. */}}
{{- define "volplane.controllers" -}}
{{- if not (has "all" .Values.controllers) -}}
{{- .Values.controllers | toJson -}}
{{- else if gt (len .Values.controllers) 1 -}}
{{- fail "controllers: all stands alone, or leave it out and name them" -}}
{{- else -}}
{{- list "binder" "provisioner" "reclaimer" "expander" "protection" "attach-detach" "attacher" "assigner" "capacity" | toJson -}}
{{- end -}}
{{- end }}

{{- /* The configuration file. */}}
{{- define "volplane.configuration" -}}
{{- toYaml .Values.config }}
{{ end }}

{{- /* Whether some driver has processes of nodes: text or nothing. */}}
{{- define "volplane.distributed" -}}
{{- range .Values.config.drivers }}{{ if .distributed }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* Whether the room of some driver is published: text or nothing. */}}
{{- define "volplane.publishing" -}}
{{- range .Values.config.drivers }}{{ if or .distributed .storageCapacity }}yes{{ end }}{{ end -}}
{{- end }}

{{- /* Namespace -> names of the Secrets that options refer to as secret:NAMESPACE/NAME/KEY, as JSON. */}}
{{- define "volplane.secrets" -}}
{{- $found := dict }}
{{- range concat (.Values.config.drivers | default list) (.Values.config.extensions | default list) }}
{{- range .options }}
{{- $given := "" }}{{ if kindIs "string" . }}{{ $given = trim . }}{{ end }}
{{- if regexMatch "^secret:[a-z0-9][-a-z0-9]*/[a-z0-9][-.a-z0-9]*/[-._A-Za-z0-9]+$" $given }}
{{- $parts := splitList "/" (trimPrefix "secret:" $given) }}
{{- $names := append (get $found (index $parts 0) | default list) (index $parts 1) }}
{{- $_ := set $found (index $parts 0) ($names | uniq | sortAlpha) }}
{{- end }}
{{- end }}
{{- end }}
{{- $found | toJson }}
{{- end }}

{{- /* Directories of the nodes, for pods and for their container. */}}
{{- define "volplane.volumes" -}}
{{- range $n, $path := .Values.mounts }}
- name: 'mount-{{ $n }}'
  hostPath:
    path: '{{ $path }}'
    type: Directory
{{- end }}
{{- end }}
{{- define "volplane.volumeMounts" -}}
{{- range $n, $path := .Values.mounts }}
- name: 'mount-{{ $n }}'
  mountPath: '{{ $path }}'
  mountPropagation: HostToContainer
{{- end }}
{{- end }}
