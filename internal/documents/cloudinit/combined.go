package cloudinit

import (
	"github.com/ingotmetal/ingot/inventory"
)

// JudgedBy is the version of cloud-init whose own code says what it takes for a document: Debian 12's. See
// testdata/judge.py.
const JudgedBy = "22.4.2"

// Combined returns vendor-data and user-data as one document, for data sources that know no
// vendor-data (Ec2). User-data that cloud-init does not take (an Ignition or Talos document) is
// returned untouched: see Joinable. It reveals a secret.
func Combined(m inventory.Machine, phoneHomeURL string) []byte {
	if m.UserData.IsZero() {
		return VendorData(m, phoneHomeURL)
	}
	user := []byte(m.UserData.Reveal())
	if phoneHomeURL == "" && m.VendorData.IsZero() || !Joinable(m.UserData) {
		return user
	}
	return multipart(VendorData(m, phoneHomeURL), user)
}

// Joinable reports whether cloud-init takes user for a document, so that Combined adds the phone-home to it. It
// reveals nothing but that.
func Joinable(user inventory.Secret) bool {
	doc := unpack([]byte(user.Reveal()))
	return isMIME(doc) || contentType(doc) != unknownType
}

// PhoneHomeWarning returns why the system of m does not call if its image knows EC2 only, "" if it does.
func PhoneHomeWarning(m inventory.Machine) string {
	if !m.UserDataByAddress || m.UserData.IsZero() || Joinable(m.UserData) {
		return ""
	}
	return "userData is not a document that cloud-init " + JudgedBy + " takes (its first line is not #cloud-config, #! or the like), " +
		"and it is delivered as it is. An image that knows EC2 only then gets no phone-home: a run whose template relies on " +
		"metadata_url will wait for it until its time is up, unless the document itself calls"
}
