/* Search without a server. A browser refuses workers to pages that are opened as files, so a hidden frame does a
   worker's work there. It follows iframe-worker by Martin Donath (MIT), which the theme would load from elsewhere. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      inside.document.open()
      inside.document.write(`<html><body><script>
        postMessage = message => parent.postMessage(message, "*")
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(resolve => {
          const script = document.createElement("script")
          script.src = url
          script.onload = resolve
          document.body.appendChild(script)
        })), Promise.resolve())
      </scr` + `ipt><script src="${url}"></scr` + `ipt></body></html>`)
      inside.document.close()
      addEventListener("message", event => {
        if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }))
      })
    }
    postMessage(message) {
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: message }))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
