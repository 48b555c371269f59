package ingot

// mutations are sorted by property.
var mutations = []mutation{
	{
		"S1", "TestRedeem", "inventory/sqlite/agents.go",
		"AND boot = ?4 AND spent = 0 AND netboot_until > ?7`", "AND boot = ?4 AND spent = 0 AND ?7 > 0`",
	},
	{
		"S1", "TestS1SecretsOnlyInTheWindow", "metadatasvc/lookup.go",
		"!known || !valid || !g.SecretsOpen(s.now())", "!known || !valid",
	},
	{
		"S1", "TestS1OneClaimPerBoot", "inventory/sqlite/agents.go",
		"case err == nil && !g.ByOperator():", "case err == nil && g.ByOperator() && refused == nil:",
	},
	{
		"S1", "TestS1AnotherProcessOpensNothing", "inventory/sqlite/index.go",
		`return e != nil && e.grant.Run == "" && time.Since(x.checked) <= checkedFor`,
		"return e != nil && time.Since(x.checked) <= checkedFor",
	},
	{
		"S2", "TestS2TokensAreBoundAndHashed", "inventory/sqlite/agents.go",
		"token := sha256.Sum256([]byte(r.TokenFor(r.Hello.Nonce)))",
		"token := sha256.Sum256(nil)\n\tcopy(token[:], r.TokenFor(r.Hello.Nonce))",
	},
	{
		"S2", "TestRedeem", "inventory/sqlite/agents.go",
		"case r.Latest > r.Epoch || r.Holder != r.Run:\n\t\t\terr = fmt.Errorf(\"the run of %s no longer owns the machine: %w\", of, " +
			"inventory.ErrFenced)\n\t\tcase r.Revoked:",
		"case r.Latest > r.Epoch+9:",
	},
	{
		"S3", "TestS3AgentRoutesTellNobodyWhatIsArmed", "internal/agentapi/claim.go",
		`if !valid || g.Run == "" || g.Boot == 0 {`,
		"if !valid && g.Boot > 0 {\n\t\treturn action.Welcome{}, refuseClaim(\"wrong\")\n\t}\n\tif !valid || g.Run == \"\" || g.Boot == 0 {",
	},
	{
		"S3", "TestS3UnknownClosedAndWrongAreTheSame", "metadatasvc/lookup.go",
		"known := err == nil\n", "known := err == nil\n\tif !known {\n\t\treturn profile{}, false\n\t}\n",
	},
	{
		"S4", "TestS4Callers", "metadatasvc/lookup.go",
		"func(p netip.Prefix) bool { return p.Contains(a) }", "func(netip.Prefix) bool { return true }",
	},
	{
		"S4", "TestS4AddressesOpenNoSecret", "metadatasvc/lookup.go",
		"if m.UserDataByAddress && !g.AddressClosed &&", "if !g.AddressClosed &&",
	},
	{
		"S4", "TestS4UserDataByAddress", "metadatasvc/lookup.go",
		"!g.AddressClosed && g.SecretsOpen(s.now()) &&", "!g.AddressClosed &&",
	},
	{
		"S4", "TestS4UserDataByAddress", "metadatasvc/lookup.go",
		"m.UserDataByAddress && !g.AddressClosed &&", "m.UserDataByAddress &&",
	},
	{
		"S4", "TestS4ContainersCloseTheAddress", "inventory/sqlite/assignments.go",
		"address_closed = (container OR ?5) AND ?4 AND NOT ?6", "address_closed = 0",
	},
	{
		"S5", "TestClaimConflict", "inventory/sqlite/agents.go",
		`stmt("UPDATE grant_ SET secrets_until = 0 WHERE "+owns, e.Machine, e.Run, e.Epoch),`, "",
	},
	{
		"S5", "TestS5DocumentsAreServedInTheWindowAlone", "metadatasvc/lookup.go",
		"!known || !valid || !g.SecretsOpen(s.now())", "!known || !valid",
	},
	{
		"S6", "TestStrangers", "internal/siterole/target.go",
		`s.Source.Fingerprint == "" || subtle.ConstantTimeCompare([]byte(print), []byte(s.Source.Fingerprint)) != 1`,
		`s.Source == nil || print == ""`,
	},
	{
		"S6", "TestS6RoutesPerListener", "internal/agentapi/agentapi.go",
		`{Method: "POST", Path: "/agent/v1/discover", Handler: s.discover},`,
		"{Method: \"POST\", Path: \"/agent/v1/discover\", Handler: s.discover},\n\t\t{Method: \"GET\", Path: \"/v1/machines\", Handler: s.next},",
	},
	{
		"S7", "TestS7S8S32Discovery", "bootsvc/guests.go",
		"return g.admitted >= maxNewGuests", "return g.admitted < 0",
	},
	{
		"S7", "TestS7ReportsAreLimited", "internal/agentapi/limits.go",
		"if r.isRecentLocked(mac, now) || r.isRecentLocked(source, now) ||", "if r.isRecentLocked(mac, now) ||",
	},
	{
		"S8", "TestS8EveryByteIsSigned", "action/order.go",
		"case !ed25519.Verify(key, append([]byte(orderContext), s.Order...), s.Signature):", "case len(s.Signature) == 0:",
	},
	{
		"S8", "TestS8ForgedOrdersWriteNothing", "worker-agent/order.go",
		"case o.Machine != a.cfg.Machine:", "case false:",
	},
	{
		"S8", "TestS8RunHasOnePlan", "worker-agent/order.go",
		`case a.plan != "" && o.Plan != a.plan:`, "case false:",
	},
	{
		"S8", "TestS8AssignmentsAreSigned", "activities/assign.go",
		"case d != plan.Digest:", `case d == "":`,
	},
	{
		"S9", "TestS9TemporalIsOnLoopbackOrBehindTLS", "internal/server/cluster.go",
		"case config.Loopback(c.Address):", `case c.APIKeyFile == "" || config.Loopback(c.Address):`,
	},
	{
		"S9", "TestBeyondLoopbackIsRefused", "internal/temporal/temporalchild/protocol.go",
		"err != nil || !ip.IsLoopback() {", "err != nil || !ip.IsValid() {",
	},
	{
		"S11", "TestS11ProvisionStartsOneRunPerMachine", "internal/engine/runs.go",
		"enumspb.WORKFLOW_ID_CONFLICT_POLICY_FAIL,", "enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,",
	},
	{
		"S12", "TestS12NetbootIsClosedHoweverARunEnds", "internal/engine/judge.go",
		"if now.Owner == g.Owner {", "if now.Owner != g.Owner {",
	},
	{
		"S13", "TestReplay", "workflows/run_boot.go",
		"b, s := &r.boot, &r.signals\n\tq :=", "b, s := &r.boot, &r.signals\n\t_ = workflow.Sleep(ctx, time.Second)\n\tq :=",
	},
	{
		"S14", "FuzzS14BootScript", "inventory/kernelarg.go",
		`case strings.Contains(parameter, " "):`, "case false:",
	},
	{
		"S15", "TestS15Functions", "template/functions.go",
		"all := sprig.HermeticTxtFuncMap()", "all := sprig.TxtFuncMap()",
	},
	{
		"S15", "TestS15Bombs", "template/limits.go",
		"if g.out.Len()+len(p) > maxOutput {", "if g.out.Len() < 0 {",
	},
	{
		"S16", "TestS16Injection", "template/template.go",
		"if slices.Equal(a, b) {", "if len(a) > 0 {",
	},
	{
		"S17", "TestS17OnlyConfiguredNetworksAreDialled", "bmc/networks.go",
		"return a.Unmap().String(), d.checkAddr(a)", "return a.Unmap().String(), nil",
	},
	{
		"S17", "TestS17NoRedirectIsFollowed", "internal/httpclient/httpclient.go",
		"return http.ErrUseLastResponse", "return nil",
	},
	{
		"S17", "TestS17FetchJudgesWhatItDials", "api/fetcher.go",
		"Control: f.checkAddress(host)}", "Control: nil}\n\t\t\t\t_ = host",
	},
	{
		"S17", "TestS17Registries", "api/images_pull.go",
		"if err := t.fetcher.checkURL(r.URL); err != nil {", "if err := t.fetcher.checkURL(r.URL); err == nil && false {",
	},
	{
		"S17", "TestS17HostsOfSystems", "inventory/endpoint.go",
		"case a.IsLoopback(), a.IsUnspecified():", "case a.IsUnspecified():",
	},
	{
		"S17", "TestS17NamesAreJudgedWhereTheyLead", "inventory/endpoint.go",
		`if what := AddrProblem(a.Addr()); what != "" {`, `if what := AddrProblem(a.Addr()); what == "none" {`,
	},
	{
		"S17", "TestS17AMTFollowsNoRedirect", "internal/httpclient/httpclient.go",
		"return http.ErrUseLastResponse", "return nil",
	},
	{
		"S17", "TestS17DefaultNetworksArePrivate", "bmc/networks.go",
		`"fc00::/7"`, `"::/0"`,
	},
	{
		"S17", "TestS17ANameGainsNothing", "internal/systems/endpoint/endpoint.go",
		"return inventory.MayDial(host, resolved)", "_ = host\n\t\treturn nil",
	},
	{
		"S18", "TestS18FaultyImagesAtTheDisk", "worker-agent/actions/image.go",
		`case want != "" && served != want:`, `case served == "":`,
	},
	{
		"S18", "TestS18DigestsAreDeclaredOrRecorded", "template/image.go",
		"if p.data.RequireDigest {", "if false {",
	},
	{
		"S18", "TestAPlanRefusesAnImageThatIsNotForDisks", "template/image.go",
		`case row.Whole && img.Use != "":`, "case false:",
	},
	{
		"S18", "TestS18LyingRegistries", "internal/images/container/image.go",
		"err = verified.Verify()", "err = nil",
	},
	{
		"S18", "TestS18ContainersArePlannedByDigest", "activities/render.go",
		`x.Container != nil && err == nil && r == ref {`, `x.Container != nil && err == nil && r == ref && p.Run == "" {`,
	},
	{
		"S18", "TestS18AnIndexIsAskedForOnce", "activities/render.go",
		"if c.HasDigest(ref.Digest) {", "if c.Digest == ref.Digest {",
	},
	{
		"S19", "TestS19Minisign", "internal/images/provenance/minisign.go",
		"if !in.Verify(public, signature) {", "if in == nil {",
	},
	{
		"S19", "TestS19ImageOfTheCatalog", "api/images_catalog.go",
		"if signature != nil {", "if false {",
	},
	{
		"S19", "TestAListIsNotFetchedOverARedirectToHTTP", "internal/cli/image_proof.go",
		`if via[0].URL.Scheme == "https" && r.URL.Scheme != "https" {`, `if r.URL.Scheme == "" {`,
	},
	{
		"S20", "TestS20Qcow2Refusals", "internal/images/diskimage/qcow2.go",
		"case h.BackingOffset != 0:", "case false:",
	},
	{
		"S20", "TestS20Qcow2Refusals", "internal/images/diskimage/qcow2.go",
		"return q, q.compareRefcounts(used)", "_ = used\n\treturn q, nil",
	},
	{
		"S20", "TestS20BadContainerImages", "internal/images/container/layer.go",
		"if b.left -= int64(n); b.left < 0 {", "if b.left -= int64(n); b.left < -1<<60 {",
	},
	{
		"S21", "TestArchiveStaysInItsFolder", "worker-agent/disk/filesys/tree_linux.go",
		"Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,", "",
	},
	{
		"S22", "TestS22CredentialsGoToTheirServerOnly", "worker-agent/fetch/transport.go",
		`r.Header.Del("Referer")`, "",
	},
	{
		"S22", "TestS22CommandsSeeNoCredentials", "worker-agent/actions/cexec_linux.go",
		"delete(env, name)", "_ = name",
	},
	{
		"S22", "TestS22FetchKeepsCredentials", "api/fetcher.go",
		`r.Header.Del("Referer") // the query of the referring URL may contain a credential (security S22)`, "",
	},
	{
		"S22", "TestS22RegistryCredentials", "api/images_pull.go",
		`r.Header.Get("Authorization") != "" && !t.mayHaveCredentials(to)`, "!t.mayHaveCredentials(to) && false",
	},
	{
		"S22", "TestS22TokenServersOfTheRegistry", "api/images_pull.go",
		`strings.Contains(host, ".") && strings.HasSuffix(t.host, "."+host)`, `strings.HasSuffix(t.host, host)`,
	},
	{
		"S22", "TestS22ARedirectedListKeepsItsAddress", "internal/cli/image_proof.go",
		`r.Header.Del("Referer")`, "_ = r.Header",
	},
	{
		"S23", "TestImagesOfOthersAreNoActions", "action/names.go",
		`return r.before == "" && slices.Contains(known.hosts, public)`, `return r.before == ""`,
	},
	{
		"S23", "TestParseHandlerRefuses", "action/handler.go",
		"case !canHandle(row):", "case false:",
	},
	{
		"S24",
		"TestSecretsAreEncryptedAtRest",
		"inventory/sqlite/keys.go",
		"return s.keys.Seal(purpose, binding, plain)\n}\n\nfunc (s *db) open(purpose, binding string, sealed []byte) ([]byte, error) {\n",
		"return append([]byte{}, plain...), nil\n}\n\nfunc (s *db) open(purpose, binding string, sealed []byte) ([]byte, error) {\n\tif sealed != nil {\n\t\treturn sealed, nil\n\t}\n",
	},
	{
		"S23", "TestS23ContainersAreRefused", "worker-agent/actions/container_linux.go",
		"a.Container.Privileged && len(t.spared) > 0", "a.Container.Privileged && t.spared == nil",
	},
	{
		"S24", "TestEveryConnectionThatWritesDeletesSecurely", "inventory/sqlite/sqlite.go",
		"_secure_delete=on", "_secure_delete=off",
	},
	{
		"S24", "TestRotate", "internal/secrets/keyring/rotate.go",
		"stored.old = nil\n", "_ = stored\n",
	},
	{
		"S25", "TestS25PasswordIsNowhere", "bmc/ipmi.go",
		`cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}`,
		`cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "IPMI_PASSWORD=" + p.password.Reveal()}`,
	},
	{
		"S25", "TestS25NothingSecretLeaves", "internal/httpclient/httpclient.go",
		"return http.ErrUseLastResponse", "return nil",
	},
	{
		"S26", "TestS26AnotherOperationKeepsTheCandidate", "inventory/sqlite/bmcpasswords.go",
		"OR NOT EXISTS (SELECT 1 FROM grant_ WHERE grant_.machine = ?1 AND grant_.run = machine.bmc_candidate_run))", "OR ?1 <> '')",
	},
	{
		"S27", "TestS27Certificates", "bmc/tls.go",
		"return sameKey(s.PeerCertificates[0], b.Fingerprint)", "return nil",
	},
	{
		"S27", "TestS27LinksStayAtTheBMC", "bmc/redfishsend.go",
		"(strings.EqualFold(address, t.host) || address == t.dialed)", `address != ""`,
	},
	{
		"S27", "TestS27AMTPorts", "bmc/amtports.go",
		"if err == nil && known {", "if err == nil && false && known {",
	},
	{
		"S27", "TestS27BMCKeys", "inventory/sqlite/bmckeys.go",
		"ON CONFLICT DO NOTHING", "ON CONFLICT DO UPDATE SET key = excluded.key",
	},
	{
		"S27", "TestS27Authority", "bmc/tls.go",
		"if d.cfg.Authorities != nil || d.cfg.Keys == nil {", "if d.cfg.Keys == nil {",
	},
	{
		"S28", "TestS28PowerCommandsAreNamedOnly", "api/machines.go",
		`if x != nil && x.Driver == inventory.DriverExec && x.Command != "" && b.CheckCommand != nil {`,
		`if x != nil && x.Command == "" && b.CheckCommand != nil {`,
	},
	{
		"S29", "TestS29RefusedCredentialsAreNotTriedAgainAtOnce", "bmc/budget.go",
		"&& !now.Before(r.Last) && now.Before(ended) {", "&& now.IsZero() && now.Before(ended) {",
	},
	{
		"S29", "TestOneOperationAtATime", "bmc/session.go",
		"token: make(chan struct{}, 1)", "token: make(chan struct{}, 9)",
	},
	{
		"S29", "TestS29SessionsAreBudgeted", "bmc/budget.go",
		"t.sessions--\n", "\n",
	},
	{
		"S30", "TestS30WaitingRepliesAreBounded", "bootsvc/neighbours/limits.go",
		"if toSame >= w.perAddress || now.Sub(w.ring[w.oldest].at) < arpGivesUp {", "if toSame < 0 {",
	},
	{
		"S30", "TestS30ProxyAnswers", "bootsvc/dhcp/proxy.go",
		"case !i.Address.Is4() && s.cfg.Relays.AreNear(to):", "case to.IsValid():",
	},
	{
		"S30", "TestS30MalformedPackets", "bootsvc/dhcp/answer.go",
		"if to != reserved {", "if !to.IsValid() {",
	},
	{
		"S31", "TestS31RelayOnly", "bootsvc/dhcp/exchange.go",
		"|| p.HopCount > maxHops", "|| p.HopCount > 254",
	},
	{
		"S31", "TestS31RelayOnly", "bootsvc/dhcp/answer.go",
		"return !relaysOnly", "return true",
	},
	{
		"S31", "TestLinkSelection", "bootsvc/dhcp/answer.go",
		"if !e.isNear(e.Network) || len(s.cfg.Relays) == 0 && !e.isNear(e.Relay) {", "if !e.isNear(e.Network) {",
	},
	{
		"S32", "TestS32AGuestGivesUpAReservedAddress", "bootsvc/discovery.go",
		"_, _, err := v.machines.MachineByAddress(ctx, a)\n\treturn err == nil", "return false",
	},
	{
		"S32", "TestS7S8S32Discovery", "bootsvc/guests.go",
		"if taken(a) {", "if !a.IsValid() {",
	},
	{
		"S33", "TestS33AMachineChoosesAnotherServer", "bootsvc/dhcp/answer.go",
		"s.noteRival(e)", "",
	},
	{
		"S33", "TestS33RivalsAreRaisedOnce", "bootsvc/neighbours/rivals.go",
		"if len(r.known) >= maxRivals {", "if len(r.known) < 0 {",
	},
	{
		"S34", "TestTFTPSelfTestIsForThisHost", "bootsvc/tftp.go",
		"file == autoexecName && ask.fromThisHost():", "file == autoexecName:",
	},
	{
		"S34", "TestS34TransfersAreBounded", "bootsvc/tftp/limits.go",
		"if c.transfers <= maxSessions {", "if c.transfers > 0 {",
	},
	{
		"S34", "TestTFTPOptions", "bootsvc/tftp/request.go",
		"if err != nil || n < least || n > most {", "if err != nil {",
	},
	{
		"S34", "TestTFTPDoesNotAmplify", "bootsvc/tftp/limits.go",
		"return c.recent[a] <= maxPerWindow", "return c.recent[a] > 0",
	},
	{
		"S34", "TestTFTPLimitsRequests", "bootsvc/tftp/limits.go",
		"c.undecided >= maxUndecided ||", "",
	},
	{
		"S35", "TestNoRunEndsTheReconciler", "internal/netserve/guard/guard.go",
		"g.Caught(what, v)", "panic(v)",
	},
	{
		"S35", "TestListenersOutlivePanics", "internal/netserve/guard/guard.go",
		`g.Caught("a request", v)`, "_ = v",
	},
	{
		"S35", "TestLimitSharesWhatIsPreferred", "internal/netserve/httpserve/limit.go",
		"case m.preferred && l.from[m.group] <= l.share,", "case m.preferred,",
	},
	{
		"S36", "TestS36OldLoadersAreNotServed", "bootsvc/loader.go",
		"len(below) > 0 {", "len(below) > 99 {",
	},
	{
		"S36", "TestS36Minimum", "internal/images/sbat/minimum.go",
		"have < need && (ok || stages[file].component == component)", "have < need && ok",
	},
	{
		"S41",
		"TestS41DiscoveryIsOffByDefault",
		"bootsvc/discovery.go",
		"for name, r := range cfg.Discovery {\n",
		"v.guests[\"lo\"] = newGuests(inventory.Range{From: netip.MustParseAddr(\"127.0.20.10\"), To: netip.MustParseAddr(\"127.0.20.20\")})\n\tfor name, r := range cfg.Discovery {\n",
	},
	{
		"S42", "TestS42OnlyProgramsOfTheListAreRun", "worker-agent/disk/filesys/programs_linux.go",
		"if _, ok := programs[program]; !ok {", `if program == "" {`,
	},
	{
		"S42", "TestStorageNames", "action/storagecheck.go",
		"storageName = regexp.MustCompile(`^[A-Za-z0-9]", "storageName = regexp.MustCompile(`^[A-Za-z0-9-]",
	},
	{
		"S42", "TestS42CommandsAreQuoted", "internal/documents/importfile/object.go",
		`if word != "" && !strings`, `if word != "" || !strings`,
	},
	{
		"S42", "TestS42NoDataInShellCommands", "template/handlers.go",
		"if !shell || !fromData ||", "if shell || !fromData ||",
	},
	{
		"S43", "TestS43SBOM", "deploy/release/sbom.go",
		"needs[p.BOMRef] = append(needs[p.BOMRef], m.BOMRef)", "delete(parts, m.BOMRef)",
	},
	{
		"S44", "TestS44AClaimIsUselessAfterItsUse", "inventory/sqlite/agents.go",
		"if have.Used || have.Revoked {", "if have.Revoked {",
	},
	{
		"S44", "TestS44NoSecretOnTheKernelCommandLine", "bootsvc/ipxe.go",
		`"ingot.machine=" + m.Name, `, `"ingot.machine=" + m.Name, "nonce=" + inventory.Nonce(s.cfg.ClaimKey, d.Owner), `,
	},
	{
		"S45", "TestSameBytes", "deploy/image/image.go",
		"ModTime: epoch,", "ModTime: time.Now(),",
	},
	{
		"S45", "TestS45Signature", "deploy/release/sign.go",
		"io.Copy(io.Discard, content)", "io.CopyN(io.Discard, content, 0)",
	},
	{
		"S46", "TestSpoofedEventsAreBounded", "inventory/sqlite/events.go",
		`e.Key, e.Message = "", clip(e.Message, maxWireText)`, "e.Message = clip(e.Message, maxWireText)",
	},
	{
		"S46",
		"TestS46PacketsUseUpNoBoot",
		"workflows/run_boot.go",
		"s.poweredOn || s.received.hasAny(inventory.EventKernel,",
		"s.poweredOn || s.received.hasAny(inventory.EventScript, inventory.EventKernel,",
	},
	{"S47", "TestS47ColouredTable", "internal/cli/table.go", "row[i].text = Inert(fmt.Sprint(c))", "row[i].text = fmt.Sprint(c)"},
	{
		"S47", "TestS47TerminalCapture", "internal/cli/terminal.go",
		`if r != '\n' && r != '\t' && human.Dangerous(r) {`, "if r == utf8.RuneError {",
	},
	{
		"S37", "TestS37RolesOfRoutes", "api/api.go",
		"r.Use(access.authenticate, checkOrigin, access.authorize,", "r.Use(access.authenticate, checkOrigin,",
	},
	{
		"S37", "TestS37RolesOfRoutes", "inventory/token.go",
		"RoleBackup:  {RoleBackup},", "RoleBackup:  {RoleBackup, RoleRead},",
	},
	{
		"S37", "TestS37RolesComeBeforeKeys", "api/keyedrequests.go",
		"keyedID(callerOf(c.Request.Context()).ID, key)", `keyedID("", key)`,
	},
	{
		"S37", "TestS37RevokedTokenEndsRequests", "api/access.go",
		"_, _ = rc.SetReadDeadline(past), rc.SetWriteDeadline(past)", "_, _ = past, rc",
	},
	{
		"S37", "TestS37TokensAreOffAfterARestore", "inventory/sqlite/backup.go",
		`stmt("UPDATE token SET off = 1"),`, "",
	},
	{
		"S48", "TestS48PendingEventsAreBounded", "bootsvc/wire/record.go",
		"if len(p.list) >= maxPendingEvents {", "if len(p.list) < 0 {",
	},
	{
		"S48", "TestMessagesAreBounded", "internal/netserve/quietlog/quiet.go",
		"if n == nil && len(c.of) >= maxMessages {", "if n == nil && len(c.of) < 0 {",
	},
	{
		"S48", "TestS48SyslogIsBounded", "inventory/sqlite/syslog.go",
		"ORDER BY seq DESC LIMIT 1 OFFSET ?2)", "ORDER BY seq DESC LIMIT 1 OFFSET 9*?2)",
	},
	{
		"S48", "TestRelayed", "bootsvc/dhcp/relays.go",
		"if len(r.known) < maxRelays {", "if len(r.known) >= 0 {",
	},
	{
		"S48", "TestS48ForgedRelaysWriteNothing", "bootsvc/dhcp/answer.go",
		"		if reserved {", "		if e.Relay.IsValid() {",
	},
	{
		"S48", "TestS48FetchesWriteBoundedRows", "metadatasvc/fetches.go",
		"if ok && now.Sub(last) < recordEvery {", "if ok && now.Sub(last) < 0 {",
	},
	{
		"S49", "TestS49BrowserGuards", "api/access.go",
		"if host := hostname(c.Request.Host); !a.hosts[host] &&", `if host := hostname(c.Request.Host); host == "" &&`,
	},
	{
		"S49", "TestS49Cookie", "api/sessions.go",
		"SameSite: http.SameSiteStrictMode,", "SameSite: http.SameSiteLaxMode,",
	},
	{
		"S49", "TestS49TemporalUIAnswersOnlyNamesOfThisHost", "internal/temporal/temporalserver/ui.go",
		"if !names[strings.ToLower(u.Hostname())] {", `if !names[strings.ToLower(u.Hostname())] && names["none"] {`,
	},
	{
		"S49", "TestS49OnlyQueriesPass", "internal/temporal/temporalserver/ui.go",
		"slices.Contains(queryTypes, parts[8])", "!slices.Contains(queryTypes, \"\")",
	},
	{
		"S49", "TestS49OnlyQueriesPass", "internal/temporal/temporalserver/ui.go",
		"(r.Method != http.MethodPost || !isQuery(r.URL.EscapedPath()))", "r.Method != http.MethodPost",
	},
	{
		"S49",
		"TestSession",
		"api/sessions.go",
		"s.sessions.EndSession(c.Request.Context(), sha256.Sum256([]byte(cookie)))",
		"s.sessions.EndSession(c.Request.Context(), sha256.Sum256(nil))",
	},
	{
		"S49", "TestLoginLinkExpires", "inventory/sqlite/sessions.go",
		"AND kind = ? AND expires > ? RETURNING", "AND kind = ? AND ? <> '' RETURNING",
	},
	{
		"S49", "TestS49PageIsGuarded", "web/web.go",
		`frame-ancestors 'none'; object-src 'none'; " +`, `object-src 'none'; " +`,
	},
	{
		"S49", "TestS49TemporalUISessions", "api/temporalui.go",
		`[]string{"Authorization", "Authorization-Extras", "Cookie"}`, `[]string{"Authorization", "Authorization-Extras"}`,
	},
	{
		"S49", "TestS49TemporalUISessions", "api/access.go",
		"a.sessions.TokenOfSession(ctx, given.kind,", "a.sessions.TokenOfSession(ctx, inventory.SessionPage,",
	},
	{
		"S50", "TestBMCRetargetClearsPassword", "inventory/sqlite/machines_secrets.go",
		"machine, b.Driver, b.Host, b.Port, !b.InsecureTLS", `machine, b.Driver, "", b.Port, !b.InsecureTLS`,
	},
	{
		"S50", "TestS50NothingIsSentWithoutAPassword", "bmc/ipmi.go",
		`case text == "":`, "case false:",
	},
	{
		"S51", "TestS51SharesAreConfined", "internal/images/imagefile/imagefile.go",
		"if err == nil && !info.Mode().IsRegular() {", "if err == nil && info.IsDir() {",
	},
	{
		"S51", "TestS51SharesHoldImagesAlone", "internal/config/check.go",
		"c.checkShares(&p)", "",
	},
	{
		"S51", "TestInPlace", "internal/images/imagefile/imagefile.go",
		"if err == nil && sum != i.SHA256 {", `if err == nil && sum == "" {`,
	},
	{
		"S57", "TestS57TemporalAsksForACertificate", "internal/server/temporal.go",
		"c.Ports.UI = 0", `c.Identity, t.tls = "", nil`,
	},
	{
		"S57", "TestS57TemporalAsksForACertificate", "internal/temporal/temporalchild/ui.go",
		"return os.Chmod(path, 0o600)", "return nil",
	},
	{
		"S58", "TestDamage", "internal/backup/format.go",
		"got != p.SHA256 {", `got == "" {`,
	},
	{
		"S58", "TestOnlyTheSiteSeals", "internal/backup/format.go",
		"if hmac.Equal(have, s.mac(key)) {", "if len(have) == len(s.mac(key)) {",
	},
	{
		"S58", "TestS58GreedyKeysAreRefused", "internal/backup/keys.go",
		"if w.MemoryKiB > maxMemoryKiB || w.Time > maxTime || w.Threads > maxThreads {",
		"if w.MemoryKiB > maxMemoryKiB || w.Time > maxTime {",
	},
	{
		"S59", "TestS59SlurpFails", "internal/httpclient/httpclient.go",
		"return http.ErrUseLastResponse", "return nil",
	},
	{
		"S59", "TestS59OrdersNameListedHosts", "activities/upload.go",
		"if err == nil && !slices.Contains(s.UploadHosts, host) {", "if err == nil && !slices.Contains([]string{host}, host) {",
	},
	{
		"S59", "TestS59HandlersSendNoDisk", "action/handler.go",
		`&& row.Adds == "" && row.Upload == ""`, `&& row.Adds == ""`,
	},
	{
		"S60", "TestS60MetricsToken", "api/access.go",
		"if t == nil || len(t.VerifiedChains) == 0 {", "if t == nil {",
	},
	{
		"S60", "TestS60ClassesAreBounded", "internal/observe/metrics/phases.go",
		"if len(p.classes) == maxClasses {", "if len(p.classes) < 0 {",
	},
	{
		"S60", "TestS60ClientCertificates", "internal/netserve/listener/listener.go",
		"tls.VerifyClientCertIfGiven", "tls.RequestClientCert",
	},
	{
		"S61", "TestS61PayloadsAreEncrypted", "internal/temporal/payloadcodec/codec.go",
		"if isEncrypted(p) {", "if p != nil {",
	},
	{
		"S61", "TestCodecPreflight", "api/codec.go",
		"if !a.isCodecOrigin(c) {\n\t\treturn", "if a.codecOrigin == \"\" {\n\t\treturn",
	},
	{
		"S61", "TestS61CodecToken", "api/codec.go",
		"if !a.admit(c) {", "if c.IsAborted() {",
	},
	{
		"S62", "TestStoredSpans", "internal/observe/tracing/kinds.go",
		`attribute.Int("ingot.action.attempt", r.Key.Attempt)`, `attribute.String("ingot.action.message", r.Message)`,
	},
	{
		"S63", "TestS63FingerprintsNeedTheServersKey", "api/keyedrequests.go",
		"m := hmac.New(sha256.New, k.fingerprint)", "m := hmac.New(sha256.New, nil)",
	},
	{
		"S63", "TestS63KeyedRequestsAreBounded", "inventory/sqlite/keyedrequests.go",
		"if n >= maxKeyedRequests {", "if n < 0 {",
	},
	{
		"S63", "TestS63AnswersOfKeyedRequestsHoldNoSecrets", "api/keyedrequests.go",
		`"/v1/login-links", "/v1/logout",`, `"/v1/logout",`,
	},
	{
		"S64", "TestReadPrivate", "internal/host/durablefile/durable_unix.go",
		"st.Mode().Perm()&0o077 == 0", "st.Mode().Perm()&0o007 == 0",
	},
	{
		"S64", "TestReadPrivateIsBounded", "internal/host/durablefile/durable.go",
		"io.LimitReader(f, maxPrivate+1)", "io.LimitReader(f, maxPrivate)",
	},
	{
		"S64", "TestGivenByRoot", "internal/host/durablefile/durable_unix.go",
		"st.Mode().Perm()&0o037 == 0", "st.Mode().Perm()&0o030 == 0",
	},
	{
		"S65", "TestS65ApplyOverwritesNothingOfOthers", "inventory/sqlite/apply.go",
		"return applied == set && (!set || digest == digestField(path, value))", "return applied == set && (!set || digest != value)",
	},
	{
		"S65", "TestS65ApplyPrunesItsSetOnly", "inventory/sqlite/apply.go",
		`"WHERE set_name = ?"`, `"WHERE set_name >= ?"`,
	},
	{
		"S65", "TestS24S65AppliedSurvivesNewKeys", "inventory/sqlite/apply.go",
		"sealed, err := p.seal(sealPlan, runBinding(r.Run), []byte(doc))", "sealed, err := []byte(doc), error(nil)",
	},
	{
		"S66", "TestS66DevicesFollowTheBoundDisk", "worker-agent/container/disk_linux.go",
		"err != nil || other != own {", "err != nil || other == own+\"x\" {",
	},
	{
		"S66", "TestS66DevicesFollowTheBoundDisk", "worker-agent/container/disk_linux.go",
		"got != d.serial {", "got == \"\" {",
	},
	{
		"S66", "TestS66RulesOfDevices", "worker-agent/container/deviceprogram_linux.go",
		"add(instruction(notEqual, 4, 0, 2, d.minor))", "add(instruction(notEqual, 4, 0, 0, d.minor))",
	},
	{
		"S67", "TestS67ContainersHaveFewCapabilities", "worker-agent/container/config_linux.go",
		"sysfs, may = \"ro\", capabilities", "sysfs, may = \"ro\", allCapabilities",
	},
	{
		"S67", "TestS67UnpackRefuses", "worker-agent/container/unpack_linux.go",
		"got != s.want {", "got == \"\" {",
	},
	{
		"S67", "TestS67LayerStaysInItsImage", "worker-agent/disk/filesys/layer_linux.go",
		"if h.Typeflag == tar.TypeChar || h.Typeflag == tar.TypeBlock {", "if h.Typeflag == tar.TypeChar && h.Name == \"\" {",
	},
	{
		"S67", "TestRetryFillsSharedFolders", "activities/plan.go",
		"if slices.ContainsFunc(plan.Actions[out.From:], plan.Actions[i].SharesFolder) {",
		"if plan.Actions[i].SharesFolder(plan.Actions[len(plan.Actions)-1]) {",
	},
	{
		"S68",
		"TestGrantsAreTakenTogether",
		"inventory/sqlite/grants.go",
		"\treturn s.write(ctx, \"taking the grants of several machines\", func",
		"\tfor _, c := range claimants {\n\t\tif _, err := s.TakeGrant(ctx, c.Machine, c.Run, c.Workflow, false); err != nil {\n\t\t\treturn err\n" +
			"\t\t}\n\t}\n\treturn s.write(ctx, \"taking the grants of several machines\", func",
	},
	{
		"S68", "TestTogetherTaskWaitsForItsTurn", "workflows/provision_actions.go",
		"turn != nil && p.record.Actions[i].Attempt == 0 {", "turn != nil && p.record.Actions[i].Attempt > 0 {",
	},
	{
		"S68", "TestAwaitTurn", "activities/together.go",
		"later = x.Task != task //", "later = true //",
	},
	{
		"S68", "TestTogetherMachines", "activities/together.go",
		`next != "" && !seen[next]; {`, `next == q.Resume && !seen[next]; {`,
	},
	{
		"S68", "TestTogetherIsCancelled", "workflows/together.go",
		"row.State != inventory.StepRunning && row.State != inventory.StepWaiting {", "row.State != inventory.StepRunning {",
	},
}

// withoutMutation are the properties that no test without a virtual machine proves, and why.
var withoutMutation = map[string]string{
	"S10": "TestS10S25S44Canaries looks for secrets in the histories of a real Temporal server (e2e)",
}
