{{- /* The name of every object, unless a chart gives it another one: the release's, with "ingot" in it. */ -}}
{{- define "ingot.fullname" -}}
{{- $name := contains "ingot" .Release.Name | ternary .Release.Name (printf "%s-ingot" .Release.Name) -}}
{{- .Values.fullnameOverride | default $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "ingot.labels" -}}
app.kubernetes.io/name: ingot
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* "true" if the API listens beyond loopback, where a Service reaches it. */ -}}
{{- define "ingot.reachable" -}}
{{- $listen := get (fromYaml .Values.config) "listen" | default "127.0.0.1:8080" | toString -}}
{{- not (regexMatch "^(127\\.|localhost:|\\[::1\\]:)" $listen) -}}
{{- end -}}

{{- /* The port of Temporal's UI; empty if config has none, or with a cluster. YAML may read off as false. */ -}}
{{- define "ingot.uiPort" -}}
{{- $temporal := get (fromYaml .Values.config) "temporal" | default dict -}}
{{- $listen := get $temporal "ui_listen" | toString | default ":8234" -}}
{{- if not (get $temporal "address") }}{{ regexFind "[0-9]+$" $listen }}{{ end -}}
{{- end -}}

{{- define "ingot.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* What both containers have in common. The program itself carries the two capabilities (low ports; DHCP to machines without an
address): as it does not run as root it gets them when it starts, which allowPrivilegeEscalation must permit. Nothing else in the
image carries any. */ -}}
{{- define "ingot.security" -}}
securityContext:
  allowPrivilegeEscalation: true
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL], add: [NET_BIND_SERVICE, NET_RAW]}
{{- end -}}

{{- define "ingot.container" -}}
{{ include "ingot.security" . }}
volumeMounts:
  - {name: site, mountPath: /etc/ingot, subPath: etc}
  - {name: site, mountPath: /var/lib/ingot, subPath: data}
  - {name: config, mountPath: /etc/ingot/ingot.yaml, subPath: ingot.yaml, readOnly: true}
  - {name: tmp, mountPath: /tmp}
  {{- if .Values.nfs.server }}
  - {name: images, mountPath: /mnt/images, readOnly: true}
  {{- end }}
  {{- if .Values.backup.enabled }}
  - {name: backups, mountPath: /var/backups/ingot}
  - {name: backup-passphrase, mountPath: /etc/ingot-backup, readOnly: true}
  {{- end }}
  {{- range $i, $s := .Values.extraSecrets }}
  - {name: secret-{{ $i }}, mountPath: {{ $s.mountPath | quote }}, readOnly: true}
  {{- end }}
{{- end -}}
