"""What stands between a client and a server: proxies that cut, die, share or encrypt."""
