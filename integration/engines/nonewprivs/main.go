// Nonewprivs prints its effective user id. Its file in the image is set-user-id root, so the id shows whether a runtime
// lets programs gain privileges.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Printf("Effective uid: %d\n", os.Geteuid())
}
