package cloudinit

import (
	"github.com/ingotmetal/ingot/inventory"
)

// JudgedBy is the version of cloud-init in Debian 12. The tests compare Joinable with this version: testdata/judge.py
// asks its code which user-data it accepts.
const JudgedBy = "22.4.2"

// Combined returns vendor-data and user-data as one document, for data sources without vendor-data (Ec2). If the user-data
// is not Joinable (an Ignition or Talos document), Combined returns only the user-data, unchanged. The result holds secrets.
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

// Joinable reports whether cloud-init accepts the document user, so that Combined can add the phone-home to it. The
// result does not reveal the content of user.
func Joinable(user inventory.Secret) bool {
	doc := unpack([]byte(user.Reveal()))
	return isMIME(doc) || contentType(doc) != unknownType
}

// PhoneHomeWarning is for an image that supports only the EC2 metadata service. It returns why the system of m that is
// installed from such an image sends no phone-home; "" if the system sends one.
func PhoneHomeWarning(m inventory.Machine) string {
	if !m.UserDataByAddress || m.UserData.IsZero() || Joinable(m.UserData) {
		return ""
	}
	return "cloud-init " + JudgedBy + " does not recognise userData (its first line is not #cloud-config, #! or the like), " +
		"so Ingot delivers userData unchanged. An image that reads only EC2 metadata then does not phone home: a run whose " +
		"template relies on metadata_url waits until its timeout, unless userData itself phones home"
}
