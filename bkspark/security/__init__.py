"""Authentication: principals, JAAS files, and the SASL mechanisms of both sides."""
