LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'  # what every layout's oci-layout holds
