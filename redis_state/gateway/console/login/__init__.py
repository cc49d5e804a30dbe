"""Logins to the console: cookies, who looks at a page, and forms that wait for a login."""
