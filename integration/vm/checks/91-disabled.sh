# Disabled units stay disabled after a reinstallation of the package.
. "$VM/lib.sh"
units='executord.socket executord.service executor-launcher.service'
systemctl disable --now $units
dpkg -i --force-confold /payload/executor.deb
for unit in $units; do
    same disabled "$(systemctl is-enabled $unit || true)" "$unit"
done
systemctl enable --now executord.service
eventually 60 serves
