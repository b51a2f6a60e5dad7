"""Any backend as a CSI driver: `volplane csi`. No controller imports this.

A caller of CSI gives up after seconds and asks again, so hooks outlive the calls that began them (`flights`). It also
takes most error codes for the proof that nothing was made; such a code is sent only with that proof (`codes`).
"""
