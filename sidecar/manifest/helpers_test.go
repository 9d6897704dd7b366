package manifest

import "regexp"

// regexpText makes regular expressions comparable.
func regexpText(re *regexp.Regexp) string {
	if re == nil {
		return ""
	}
	return "/" + re.String() + "/"
}
